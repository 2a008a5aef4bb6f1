//! The principals file: who may call, as TOML.
//!
//! ```toml
//! [[principal]]
//! name = "ci/build"
//! roles = ["producer", "worker"]
//! bearer_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! ```
//!
//! `bearer_sha256` may be a list of up to [`MAX_HASHES`], so that a token can be replaced without a gap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ag_core::name::PrincipalName;
use serde::Deserialize;
use toml::{Spanned, Value};

use crate::bearer::BearerHash;
use crate::role::{Role, Roles};

/// The name of the cluster itself in the audit log, which no principal may bear.
pub const SYSTEM: &str = "system";
/// Most principals in a file.
pub const MAX_PRINCIPALS: usize = 10_000;
/// Most bearer tokens of one principal.
pub const MAX_HASHES: usize = 8;
/// Largest principals file, in bytes.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

/// One principal.
#[derive(Clone, Debug)]
pub struct PrincipalEntry {
    /// Its name.
    pub name: PrincipalName,
    /// What it is.
    pub roles: Roles,
    /// The digests of its tokens, 1–[`MAX_HASHES`].
    pub bearer_hashes: Vec<BearerHash>,
}

/// Everyone who may call.
///
/// Invariant: no name and no digest stands twice.
#[derive(Clone, Debug)]
pub struct Principals(Vec<PrincipalEntry>);

/// Why a principals file is not taken. Nothing of the file's content is repeated but names.
#[derive(Debug, thiserror::Error)]
pub enum PrincipalsError {
    /// It cannot be read.
    #[error("cannot read the principals file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is too large.
    #[error("the principals file {} is larger than {MAX_FILE_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not what it should be.
    #[error("principals file, line {line}, {field}: {problem}")]
    Field {
        /// The line, from 1.
        line: usize,
        /// The field, such as `principal[2].roles`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
struct RawFile {
    #[serde(default)]
    principal: Vec<Spanned<RawPrincipal>>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

/// Untyped on purpose: the errors of a typed one would repeat the value, which may be a token put in the wrong place.
#[derive(Deserialize)]
struct RawPrincipal {
    name: Option<Spanned<Value>>,
    roles: Option<Spanned<Value>>,
    bearer_sha256: Option<Spanned<Value>>,
    #[serde(flatten)]
    unknown: BTreeMap<String, Value>,
}

impl Principals {
    /// Reads a principals file.
    pub fn read(path: &Path) -> Result<Self, PrincipalsError> {
        let fail = |source| PrincipalsError::Read { path: path.into(), source };
        if std::fs::metadata(path).map_err(fail)?.len() > MAX_FILE_BYTES {
            return Err(PrincipalsError::TooLarge { path: path.into() });
        }
        Self::parse(&std::fs::read_to_string(path).map_err(fail)?)
    }

    /// Parses the text of a principals file.
    pub fn parse(text: &str) -> Result<Self, PrincipalsError> {
        let place = Place::of(text);
        let raw: RawFile = toml::from_str(text).map_err(|error| place.not_toml(error.span()))?;
        if let Some(key) = raw.unknown.keys().next() {
            return Err(place.problem(0, key, "is not known; the file consists of [[principal]] tables"));
        }
        if raw.principal.is_empty() {
            return Err(place.problem(0, "principal", "there is none; nobody could call"));
        }
        if raw.principal.len() > MAX_PRINCIPALS {
            return Err(place.problem(0, "principal", &format!("there are more than {MAX_PRINCIPALS}")));
        }
        let mut checker = Checker { place, names: BTreeMap::new(), hashes: BTreeMap::new() };
        let entries = raw.principal.into_iter().enumerate().map(|(position, raw)| checker.principal(position, raw));
        entries.collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// The principals, in the order of the file.
    pub fn entries(&self) -> &[PrincipalEntry] {
        &self.0
    }

    /// The principal with this token. Compares with every one, so that the time tells nothing about which it is.
    pub fn find(&self, presented: &BearerHash) -> Option<&PrincipalEntry> {
        let mut found = None;
        for entry in &self.0 {
            for hash in &entry.bearer_hashes {
                if hash.matches(presented) {
                    found = Some(entry);
                }
            }
        }
        found
    }
}

/// Where the lines of the file begin.
struct Place {
    line_starts: Vec<usize>,
}

impl Place {
    fn of(text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { line_starts: std::iter::once(0).chain(newlines.map(|(offset, _)| offset + 1)).collect() }
    }

    /// The line, from 1, in which the byte at `offset` stands.
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    fn problem(&self, offset: usize, field: &str, problem: &str) -> PrincipalsError {
        PrincipalsError::Field { line: self.line(offset), field: field.into(), problem: problem.into() }
    }

    fn not_toml(&self, span: Option<std::ops::Range<usize>>) -> PrincipalsError {
        let offset = span.map_or(0, |span| span.start);
        self.problem(offset, "principal", "is not TOML of the form [[principal]], name, roles, bearer_sha256")
    }
}

struct Checker {
    place: Place,
    names: BTreeMap<PrincipalName, usize>,
    hashes: BTreeMap<[u8; 32], usize>,
}

impl Checker {
    fn principal(&mut self, position: usize, raw: Spanned<RawPrincipal>) -> Result<PrincipalEntry, PrincipalsError> {
        let offset = raw.span().start;
        let raw = raw.into_inner();
        let field = |name: &str| format!("principal[{position}].{name}");
        if let Some(key) = raw.unknown.keys().next() {
            return Err(self.place.problem(offset, &field(key), "is not known; give name, roles and bearer_sha256"));
        }
        let name = self.name(offset, &field("name"), raw.name)?;
        let roles = self.roles(offset, &field("roles"), raw.roles)?;
        let bearer_hashes = self.bearer_hashes(offset, &field("bearer_sha256"), raw.bearer_sha256)?;
        Ok(PrincipalEntry { name, roles, bearer_hashes })
    }

    fn present(
        &self,
        table: usize,
        field: &str,
        raw: Option<Spanned<Value>>,
    ) -> Result<(usize, Value), PrincipalsError> {
        let raw = raw.ok_or_else(|| self.place.problem(table, field, "is missing"))?;
        Ok((raw.span().start, raw.into_inner()))
    }

    fn name(
        &mut self,
        table: usize,
        field: &str,
        raw: Option<Spanned<Value>>,
    ) -> Result<PrincipalName, PrincipalsError> {
        let (offset, value) = self.present(table, field, raw)?;
        let text = value.as_str().ok_or_else(|| self.place.problem(offset, field, "must be a string"))?;
        let name =
            PrincipalName::parse(field, text).map_err(|error| self.place.problem(offset, field, &error.bound))?;
        if text == SYSTEM {
            return Err(self.place.problem(offset, field, "must not be `system`, which is the cluster itself"));
        }
        if let Some(first) = self.names.insert(name.clone(), self.place.line(offset)) {
            return Err(self.place.problem(offset, field, &format!("stands in line {first} already")));
        }
        Ok(name)
    }

    fn roles(&self, table: usize, field: &str, raw: Option<Spanned<Value>>) -> Result<Roles, PrincipalsError> {
        let (offset, value) = self.present(table, field, raw)?;
        let wrong =
            || self.place.problem(offset, field, "must be a list of `worker`, `producer`, `admin`, at least one");
        let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(wrong)?;
        list.iter().map(|role| role.as_str().and_then(Role::parse).ok_or_else(wrong)).collect()
    }

    fn bearer_hashes(
        &mut self,
        table: usize,
        field: &str,
        raw: Option<Spanned<Value>>,
    ) -> Result<Vec<BearerHash>, PrincipalsError> {
        let (offset, value) = self.present(table, field, raw)?;
        let bound =
            format!("must be the SHA-256 of a token, as 64 lowercase hex digits, or a list of 1–{MAX_HASHES} of these");
        let list = match value {
            Value::Array(list) => list,
            one => vec![one],
        };
        if !(1..=MAX_HASHES).contains(&list.len()) {
            return Err(self.place.problem(offset, field, &bound));
        }
        let mut hashes = Vec::with_capacity(list.len());
        for value in list {
            let hash = value.as_str().and_then(BearerHash::parse);
            let hash = hash.ok_or_else(|| self.place.problem(offset, field, &bound))?;
            if let Some(first) = self.hashes.insert(hash.raw(), self.place.line(offset)) {
                return Err(self.place.problem(offset, field, &format!("stands in line {first} already")));
            }
            hashes.push(hash);
        }
        Ok(hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bearer::BearerToken;

    fn hash_of(secret: &str) -> String {
        BearerToken::parse(secret).unwrap().hash().to_string()
    }

    #[test]
    fn a_good_file_gives_its_principals() {
        let (a, b, c) = (hash_of("token-of-a-000000"), hash_of("token-of-b-000000"), hash_of("token-of-b-000001"));
        let text = format!(
            "[[principal]]\nname = \"ci/build\"\nroles = [\"producer\", \"worker\"]\nbearer_sha256 = \"{a}\"\n\
             [[principal]]\nname = \"ops\"\nroles = [\"admin\"]\nbearer_sha256 = [\"{b}\", \"{c}\"]\n"
        );
        let principals = Principals::parse(&text).unwrap();
        let find =
            |secret| principals.find(&BearerToken::parse(secret).unwrap().hash()).map(|entry| entry.name.to_string());
        assert_eq!(find("token-of-a-000000").as_deref(), Some("ci/build"));
        assert_eq!(find("token-of-b-000000").as_deref(), Some("ops"));
        assert_eq!(find("token-of-b-000001").as_deref(), Some("ops"));
        assert_eq!(find("token-of-c-000000"), None);
        assert_eq!(principals.entries()[0].roles, [Role::Producer, Role::Worker].into_iter().collect());
    }

    #[test]
    fn bad_files_name_line_and_field_and_repeat_no_secret() {
        let hash = hash_of("token-of-a-000000");
        let head =
            format!("# a comment\n[[principal]]\nname = \"a\"\nroles = [\"worker\"]\nbearer_sha256 = \"{hash}\"\n");
        let second = |rest: &str| format!("{head}[[principal]]\n{rest}");
        let other = hash_of("token-of-b-000000");
        let cases: Vec<(String, usize, &str)> = vec![
            (String::new(), 1, "principal"),
            ("x = \"sesame\"\n".into(), 1, "x"),
            ("principal = \"sesame\"\n".into(), 1, "principal"),
            (format!("{head}name = \"sesame\"\n"), 6, "principal"),
            (format!("{head}\n\n= sesame\n"), 8, "principal"),
            (second("roles = [\"worker\"]\n"), 6, "principal[1].name"),
            (second("name = 5\n"), 7, "principal[1].name"),
            (second("name = \"se|same\"\n"), 7, "principal[1].name"),
            (second("name = \"system\"\n"), 7, "principal[1].name"),
            (second("name = \"a\"\n"), 7, "principal[1].name"),
            (second("name = \"b\"\n"), 6, "principal[1].roles"),
            (second("name = \"b\"\nroles = []\n"), 8, "principal[1].roles"),
            (second("name = \"b\"\nroles = \"worker\"\n"), 8, "principal[1].roles"),
            (second("name = \"b\"\nroles = [\"sesame\"]\n"), 8, "principal[1].roles"),
            (second("name = \"b\"\nroles = [\"worker\"]\n"), 6, "principal[1].bearer_sha256"),
            (
                second("name = \"b\"\nroles = [\"worker\"]\nbearer_sha256 = \"sesame\"\n"),
                9,
                "principal[1].bearer_sha256",
            ),
            (second("name = \"b\"\nroles = [\"worker\"]\nbearer_sha256 = []\n"), 9, "principal[1].bearer_sha256"),
            (second("name = \"b\"\nroles = [\"worker\"]\nbearer_sha256 = 17\n"), 9, "principal[1].bearer_sha256"),
            (
                second(&format!("name = \"b\"\nroles = [\"worker\"]\nbearer_sha256 = \"{hash}\"\n")),
                9,
                "principal[1].bearer_sha256",
            ),
            (
                second(&format!(
                    "name = \"b\"\nroles = [\"worker\"]\nbearer_sha256 = \"{other}\"\nbearer = \"sesame\"\n"
                )),
                6,
                "principal[1].bearer",
            ),
        ];
        for (text, expected_line, expected_field) in cases {
            let error = Principals::parse(&text).expect_err(&text);
            let shown = format!("{error} {error:?}");
            let PrincipalsError::Field { line, field, .. } = error else { panic!("{shown}") };
            assert_eq!((line, field.as_str()), (expected_line, expected_field), "{text}\n{shown}");
            assert!(!shown.contains("sesame") && !shown.contains(&hash), "{shown}");
        }
    }

    #[test]
    fn bounds_on_principals_and_hashes_hold_at_the_edge() {
        let entry = |n: usize, count: usize| {
            let hashes = (0..count).map(|k| format!("\"{:064x}\"", n * 100 + k + 1)).collect::<Vec<_>>().join(",");
            format!("[[principal]]\nname = \"p{n}\"\nroles = [\"worker\"]\nbearer_sha256 = [{hashes}]\n")
        };
        assert!(Principals::parse(&entry(1, MAX_HASHES)).is_ok());
        assert!(Principals::parse(&entry(1, MAX_HASHES + 1)).is_err());
        let most: String = (0..MAX_PRINCIPALS).map(|n| entry(n, 1)).collect();
        assert_eq!(Principals::parse(&most).unwrap().entries().len(), MAX_PRINCIPALS);
        let error = Principals::parse(&(most + &entry(MAX_PRINCIPALS, 1))).unwrap_err();
        assert!(error.to_string().contains("10000"), "{error}");
    }
}
