//! Bearer tokens and their digests.

use std::fmt;
use std::hint::black_box;

use ag_core::digest::Digest;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Shortest bearer token.
const BYTES_MIN: usize = 16;
/// Longest bearer token.
const BYTES_MAX: usize = 512;

/// A secret that a caller shows. Neither `Debug` nor any error shows it; [`BearerToken::expose`] does.
#[derive(Clone)]
pub struct BearerToken(Box<str>);

/// A text that cannot be a bearer token. Does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BearerTokenError {
    /// Too short or too long.
    #[error("a bearer token must be {BYTES_MIN}–{BYTES_MAX} bytes long")]
    Length,
    /// Characters that a header does not take.
    #[error(
        "a bearer token must consist of letters, digits and `-`, `.`, `_`, `~`, `+`, `/`, with `=` at its end only"
    )]
    Characters,
}

impl BearerToken {
    /// Parses a token in the form of RFC 6750, 16–512 bytes.
    pub fn parse(text: &str) -> Result<Self, BearerTokenError> {
        if !(BYTES_MIN..=BYTES_MAX).contains(&text.len()) {
            return Err(BearerTokenError::Length);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '+' | '/');
        let body = text.trim_end_matches('=');
        if body.is_empty() || !body.chars().all(allowed) {
            return Err(BearerTokenError::Characters);
        }
        Ok(Self(text.into()))
    }

    /// A new token of 256 random bits.
    pub fn generate() -> Self {
        let secret: [u8; 32] = rand::random();
        Self(format!("ag_{}", URL_SAFE_NO_PAD.encode(secret)).into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What the principals file keeps of it.
    pub fn hash(&self) -> BearerHash {
        BearerHash(Digest::of(self.0.as_bytes()))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(hidden)")
    }
}

/// The SHA-256 of a bearer token. Shown, where it must be, as 64 lowercase hex digits by `Display`; `Debug` hides it.
#[derive(Clone, Copy)]
pub struct BearerHash(Digest);

impl BearerHash {
    /// Parses 64 lowercase hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        Digest::parse(text).map(Self)
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    pub fn matches(&self, other: &BearerHash) -> bool {
        let differences = self.0.0.iter().zip(&other.0.0).fold(0u8, |seen, (a, b)| seen | black_box(a ^ b));
        black_box(differences) == 0
    }

    /// The raw digest, as a key for finding doubles in a file.
    pub(crate) fn raw(&self) -> [u8; 32] {
        self.0.0
    }
}

impl fmt::Display for BearerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for BearerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerHash(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_only_when_every_bit_does() {
        let hash = BearerToken::parse("0123456789abcdef").unwrap().hash();
        // sha256sum of the 16 bytes.
        assert_eq!(hash.to_string(), "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f");
        assert!(hash.matches(&BearerHash::parse(&hash.to_string()).unwrap()));
        for bit in 0..256 {
            let mut other = hash.raw();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!hash.matches(&BearerHash(Digest(other))), "bit {bit}");
        }
    }

    #[test]
    fn generated_tokens_parse_and_differ() {
        let (one, two) = (BearerToken::generate(), BearerToken::generate());
        assert_ne!(one.expose(), two.expose());
        assert!(BearerToken::parse(one.expose()).is_ok());
        assert!(one.expose().len() >= 43);
    }

    #[test]
    fn bad_tokens_are_refused_without_being_repeated() {
        let long = "x".repeat(513);
        for (text, expected) in [
            ("short", BearerTokenError::Length),
            (long.as_str(), BearerTokenError::Length),
            ("sesame open sesame", BearerTokenError::Characters),
            ("sesame\nopensesame", BearerTokenError::Characters),
            ("sesame=opensesame", BearerTokenError::Characters),
            ("================", BearerTokenError::Characters),
        ] {
            let error = BearerToken::parse(text).unwrap_err();
            assert_eq!(error, expected);
            assert!(!format!("{error} {error:?}").contains("sesame"));
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = BearerToken::parse("opensesame-opensesame").unwrap();
        assert!(!format!("{token:?} {:?}", token.hash()).contains("sesame"));
        assert!(!format!("{:?}", token.hash()).contains(&token.hash().to_string()[..8]));
    }
}
