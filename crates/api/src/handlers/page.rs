//! Page tokens: where the next page begins, bound to what was asked for. They are checked, so that a made-up one is an
//! error and not a wrong page; they hold no secret.

use ag_core::digest::Digest;
use ag_core::job::JobState;
use ag_core::name::{FieldError, QueueName};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::failure::Failure;

const CHECK_BYTES: usize = 8;

/// Which jobs a listing wants.
pub(super) struct Filter {
    pub queue: Option<QueueName>,
    pub state: Option<JobState>,
    pub labels: Vec<(String, Option<String>)>,
}

impl Filter {
    /// A digest of what was asked for.
    pub fn digest(&self) -> Digest {
        Digest::of(format!("{:?}|{:?}|{:?}", self.queue, self.state, self.labels).as_bytes())
    }
}

/// A token for a page after `last`.
pub(super) fn seal(last: &str, asked_for: &Digest) -> String {
    let mut bytes = check(last.as_bytes(), asked_for).to_vec();
    bytes.extend_from_slice(last.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// After what the page begins; `None` for the first page.
pub(super) fn open(page_token: &str, asked_for: &Digest) -> Result<Option<String>, Failure> {
    if page_token.is_empty() {
        return Ok(None);
    }
    let bytes = URL_SAFE_NO_PAD.decode(page_token).map_err(|_| made_up())?;
    let (found, last) = bytes.split_first_chunk::<CHECK_BYTES>().ok_or_else(made_up)?;
    if *found != check(last, asked_for) {
        return Err(made_up());
    }
    String::from_utf8(last.to_vec()).map(Some).map_err(|_| made_up())
}

/// The error for a token that no listing gave.
pub(super) fn made_up() -> Failure {
    let bound = "must be empty, or the next_page_token of an answer to the same question";
    FieldError::new("page_token", bound).into()
}

fn check(last: &[u8], asked_for: &Digest) -> [u8; CHECK_BYTES] {
    let digest = Digest::of_two(&asked_for.0, last);
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&digest.0[..CHECK_BYTES]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_for_what_it_was_given_for_and_nothing_else() {
        let (asked, other) = (Digest::of(b"asked"), Digest::of(b"other"));
        let sealed = seal("j0000000000000001", &asked);
        assert_eq!(open(&sealed, &asked).unwrap().as_deref(), Some("j0000000000000001"));
        assert_eq!(open("", &asked).unwrap(), None);
        for (made_up, asked_for) in
            [(sealed.as_str(), other), ("AAAA", asked), ("§", asked), ("AAAAAAAAAAAAAAAA", asked)]
        {
            let failure = open(made_up, &asked_for).unwrap_err();
            assert_eq!(failure.facts[0], ("field".into(), "page_token".into()));
        }
    }
}
