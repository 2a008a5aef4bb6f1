//! The real work: are the files of every installed Debian package still what the package manager recorded? Without
//! dpkg: are the files of this checkout still what git recorded?

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Says of one package, named on standard input, how many of its files are good, changed and missing.
const CHECK_PACKAGE: &str = r#"export LC_ALL=C
read -r package
sums=/var/lib/dpkg/info/$package.md5sums
[ -f "$sums" ] || sums=/var/lib/dpkg/info/${package%%:*}.md5sums
[ -f "$sums" ] || { echo "good=0 changed=0 missing=0"; exit 0; }
cd / && md5sum -c "$sums" 2>/dev/null | awk '
  / OK$/ { good++ } / FAILED$/ { changed++ } / FAILED open or read$/ { missing++ }
  END { printf "good=%d changed=%d missing=%d\n", good, changed, missing }'
"#;

/// The same of one file of the checkout, with its object id before it.
const CHECK_FILE: &str = r#"read -r object_id path
[ -f "$path" ] || { echo "good=0 changed=0 missing=1"; exit 0; }
if [ "$(git hash-object -- "$path")" = "$object_id" ]; then echo "good=1 changed=0 missing=0"
else echo "good=0 changed=1 missing=0"; fi
"#;

pub struct Input {
    /// What it is.
    pub title: String,
    /// What each job is about, in the singular.
    pub unit: &'static str,
    pub jobs: Vec<InputJob>,
    /// What the workers run.
    pub command: String,
}

#[derive(Clone)]
pub struct InputJob {
    pub name: String,
    pub payload: String,
}

impl Input {
    /// The packages of this machine, else the files of this checkout.
    pub fn find() -> Result<Self> {
        match packages() {
            Some(jobs) => {
                let (title, unit) = ("the files of every installed Debian package".into(), "package");
                Ok(Self { title, unit, jobs, command: CHECK_PACKAGE.into() })
            }
            None => {
                let (title, unit) = ("the files of this checkout".into(), "file");
                Ok(Self { title, unit, jobs: files()?, command: CHECK_FILE.into() })
            }
        }
    }

    /// One of the jobs once more, for the scenes.
    pub fn one_more(&self) -> InputJob {
        self.jobs[self.jobs.len() / 2].clone()
    }
}

fn packages() -> Option<Vec<InputJob>> {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${binary:Package}\\n"]).output().ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let jobs: Vec<InputJob> =
        listed.lines().map(|name| InputJob { name: name.into(), payload: format!("{name}\n") }).collect();
    (output.status.success() && jobs.len() >= 10).then_some(jobs)
}

fn files() -> Result<Vec<InputJob>> {
    let output =
        Command::new("git").args(["ls-files", "-s", "-z"]).output().context("neither dpkg nor git is there")?;
    ensure!(output.status.success(), "there is no dpkg, and this folder is no git checkout");
    let listed = String::from_utf8(output.stdout).context("a path that is not UTF-8")?;
    // Each entry is `mode object stage<TAB>path`.
    let entries = listed.split('\0').filter_map(|entry| entry.split_once('\t'));
    let regular = entries.filter(|(facts, path)| facts.starts_with("100") && !path.contains('\n'));
    let jobs: Vec<InputJob> = regular
        .filter_map(|(facts, path)| {
            let object_id = facts.split(' ').nth(1)?;
            Some(InputJob { name: path.into(), payload: format!("{object_id} {path}\n") })
        })
        .collect();
    ensure!(jobs.len() >= 10, "the checkout has fewer than 10 files");
    Ok(jobs)
}

/// What a job's command found, as its result says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub good: u64,
    pub changed: u64,
    pub missing: u64,
}

impl Found {
    /// Reads `good=1 changed=2 missing=3`.
    pub fn parse(result: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(result).ok()?;
        let mut words = text.split_whitespace();
        let mut number = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
        Some(Self { good: number("good")?, changed: number("changed")?, missing: number("missing")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, payload: &str) -> Found {
        use std::io::Write as _;
        let mut child = Command::new("sh");
        child.args(["-c", command]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdin.take().unwrap().write_all(payload.as_bytes()).unwrap();
        Found::parse(&child.wait_with_output().unwrap().stdout).expect("a result")
    }

    #[test]
    fn results_are_read_exactly() {
        assert_eq!(Found::parse(b"good=1 changed=2 missing=3\n"), Some(Found { good: 1, changed: 2, missing: 3 }));
        assert_eq!(Found::parse(b"good=1 changed=2"), None);
        assert_eq!(Found::parse(b"nonsense"), None);
    }

    #[test]
    fn a_changed_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a file");
        std::fs::write(&path, "hello\n").unwrap();
        let object_id = "ce013625030ba8dba906f756967f9e9ca394464a";
        let payload = format!("{object_id} {}\n", path.display());
        assert_eq!(check(CHECK_FILE, &payload), Found { good: 1, ..Found::default() });
        std::fs::write(&path, "hello!\n").unwrap();
        assert_eq!(check(CHECK_FILE, &payload), Found { changed: 1, ..Found::default() });
        std::fs::remove_file(&path).unwrap();
        assert_eq!(check(CHECK_FILE, &payload), Found { missing: 1, ..Found::default() });
    }

    #[test]
    fn a_package_that_is_not_installed_has_no_files() {
        assert_eq!(check(CHECK_PACKAGE, "no-such-package\n"), Found::default());
    }
}
