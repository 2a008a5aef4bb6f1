//! Names and ids at their bounds, and one beyond.

use ag_core::digest::Digest;
use ag_core::limits;
use ag_core::name::{
    Addr, AttestationType, ClaimedBy, DedupeKey, FieldError, JobId, PrincipalName, QueueName, RequestId, WorkerLabel,
};
use ag_core::time::{LeaseTime, WallTime};

use crate::common::label;

/// Whether each kind of name takes this text.
fn names(text: &str) -> [Result<(), FieldError>; 2] {
    [QueueName::parse("f", text).map(drop), PrincipalName::parse("f", text).map(drop)]
}

#[test]
fn names_have_1_to_128_bytes_of_their_letters() {
    let longest = "q".repeat(limits::NAME_BYTES_MAX);
    for good in ["a", "A9", "a.b_c-d/e", "a//b", ".", "-", &longest] {
        assert!(names(good).iter().all(Result::is_ok), "{good}");
    }
    let too_long = format!("{longest}q");
    for bad in ["", "/", "/a", "a/", "a b", "a|b", "ä", "a\0", "a\n", &too_long] {
        for result in names(bad) {
            let error = result.unwrap_err();
            assert_eq!(error.field, "f", "{bad:?}");
            assert!(error.bound.contains("1–128 bytes"), "{}", error.bound);
        }
    }
}

type Parse = fn(&str) -> Result<(), FieldError>;

#[test]
fn texts_have_their_bounds_in_bytes_and_no_control_characters() {
    let kinds: [(usize, Parse); 5] = [
        (limits::WORKER_LABEL_BYTES_MAX, |text| WorkerLabel::parse("f", text).map(drop)),
        (limits::DEDUPE_KEY_BYTES_MAX, |text| DedupeKey::parse("f", text).map(drop)),
        (limits::REQUEST_ID_BYTES_MAX, |text| RequestId::parse("f", text).map(drop)),
        (limits::ATTESTATION_TYPE_BYTES_MAX, |text| AttestationType::parse("f", text).map(drop)),
        (limits::ADDR_BYTES_MAX, |text| Addr::parse("f", text).map(drop)),
    ];
    for (bytes_max, parse) in kinds {
        // An `ø` has two bytes.
        for good in ["x".repeat(bytes_max), "ø".repeat(bytes_max / 2), "a|b c".into(), "|".into()] {
            assert_eq!(parse(&good), Ok(()), "{good}");
        }
        let bads = [String::new(), "x".repeat(bytes_max + 1), "ø".repeat(bytes_max / 2 + 1), "a\0b".into()];
        for bad in bads.into_iter().chain(["\n".into(), "a\u{7f}".into(), "\u{85}".into()]) {
            let error = parse(&bad).unwrap_err();
            assert!(error.bound.contains(&format!("1–{bytes_max} bytes")), "{bad:?}: {}", error.bound);
        }
    }
}

#[test]
fn the_first_bar_splits_a_holder_into_principal_and_label() {
    let principal = PrincipalName::parse("f", "acme/ci").unwrap();
    for worker in ["w", "w|1", "|", "||", "acme/ci|w"] {
        let holder = ClaimedBy::new(&principal, &label(worker));
        assert_eq!(holder.as_str(), format!("acme/ci|{worker}"));
        assert_eq!(holder.worker(), worker);
        assert_eq!(ClaimedBy::from_stored(holder.as_str()), Ok(holder));
    }
    assert!(ClaimedBy::from_stored("no bar").is_err());
}

#[test]
fn a_job_id_has_one_form_and_its_order_is_that_of_the_numbers() {
    for number in [0, 1, 0xabc, 9_007_199_254_740_993, u64::MAX] {
        assert_eq!(JobId::parse(&JobId(number).to_string()), Some(JobId(number)));
    }
    assert_eq!(JobId(0xabc).to_string(), "j0000000000000abc");
    assert!(JobId(9).to_string() < JobId(16).to_string());
    let bads = ["", "j", "j1", "0000000000000abc", "J0000000000000abc", "j0000000000000ABC", "j00000000000000abc"];
    for bad in
        bads.into_iter().chain(["j+000000000000abc", "j 00000000000abc", "j000000000000abc ", "j000000000000øøø"])
    {
        assert_eq!(JobId::parse(bad), None, "{bad:?}");
    }
}

#[test]
fn a_digest_reads_back_only_what_it_shows() {
    let digest = Digest::of(b"abc");
    assert_eq!(digest.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
    assert_eq!(Digest::of_two(b"a", b"bc"), digest);
    let upper = digest.to_string().to_uppercase();
    for bad in ["", "ba78", &upper, &format!("{digest}0"), &"g".repeat(64)] {
        assert_eq!(Digest::parse(bad), None, "{bad}");
    }
}

#[test]
fn times_stop_at_their_ends_instead_of_wrapping() {
    assert_eq!(LeaseTime(u64::MAX - 1).plus_ms(5), LeaseTime(u64::MAX));
    assert_eq!(LeaseTime(1).plus_ms(u64::MAX), LeaseTime(u64::MAX));
    assert_eq!(WallTime(1).plus_ms(1), WallTime(2));
    assert_eq!(WallTime(1).plus_ms(u64::MAX), WallTime(limits::WALL_MS_MAX));
    assert_eq!(WallTime(limits::WALL_MS_MAX - 1).plus_ms(1), WallTime(limits::WALL_MS_MAX));
    assert_eq!(WallTime(limits::WALL_MS_MAX).plus_ms(1), WallTime(limits::WALL_MS_MAX));
}
