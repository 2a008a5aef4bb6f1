//! `cargo xtask tidy`: what neither rustfmt nor clippy looks at.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{links, repo};

/// Columns of a line; tables, in doc comments too, and links in Markdown are let off.
const COLUMNS: usize = 120;
/// Lines of a Rust file.
const LINES: usize = 500;
/// Nothing of these may stand in the code of the state machine: it would not be deterministic, or not pure.
const NOT_IN_CORE: [&str; 18] = [
    "SystemTime",
    "Instant",
    "HashMap",
    "HashSet",
    "RandomState",
    "f32",
    "f64",
    "tokio",
    "async",
    "await",
    "rand",
    "thread",
    "println",
    "eprintln",
    "tracing",
    "log",
    "fs",
    "net",
];

/// A problem for each place that breaks a rule.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in text_files(root)? {
        let text = repo::read(&path)?;
        let name = repo::shown(root, &path);
        problems.extend(text_problems(&name, &text));
        if name.starts_with("crates/core/src/") {
            problems.extend(core_problems(&name, &text));
        }
        if name.ends_with("/Cargo.toml") {
            problems.extend(manifest_problems(root, &name, &text)?);
        }
    }
    problems.extend(links::check(root)?);
    Ok(problems)
}

/// Every file that people write.
fn text_files(root: &Path) -> Result<Vec<PathBuf>> {
    let endings = [".rs", ".proto", ".toml", ".md", ".py", ".sh", ".service", ".c"];
    let mut files = vec![root.join("dev"), root.join(".ci/run")];
    files.extend(repo::files_below(root, &endings)?);
    files.retain(|path| {
        let name = repo::shown(root, path);
        path.exists() && !name.starts_with("crates/proto/src/generated/") && !name.starts_with("proto/google/")
    });
    Ok(files)
}

fn text_problems(name: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if name.ends_with(".rs") && lines >= LINES {
        problems.push(format!("{name}: {lines} lines; a file has fewer than {LINES}"));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(format!("{name}: does not end with a line feed"));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let width = line.chars().count();
        let is_table = line.trim_start_matches(['/', '!', ' ']).starts_with('|');
        let may_be_long = is_table || (name.ends_with(".md") && line.contains("]("));
        if width > COLUMNS && !may_be_long {
            problems.push(format!("{name}:{number}: {width} columns, more than {COLUMNS}"));
        }
        if line.ends_with([' ', '\t']) {
            problems.push(format!("{name}:{number}: ends with a space"));
        }
        if let Some(marker) = leftovers().into_iter().find(|marker| line.contains(marker.as_str())) {
            problems.push(format!("{name}:{number}: `{marker}` is left over"));
        }
        if let Some(place) = machine_paths().into_iter().find(|place| line.contains(place.as_str())) {
            problems.push(format!("{name}:{number}: `{place}` is a path of one machine"));
        }
    }
    problems
}

/// Markers of unfinished work. They are put together here, so that this file does not find itself.
fn leftovers() -> Vec<String> {
    [("TO", "DO"), ("FIX", "ME"), ("XX", "X:"), ("dbg", "!("), ("todo", "!("), ("unimplemented", "!(")]
        .map(|(front, back)| format!("{front}{back}"))
        .to_vec()
}

fn machine_paths() -> Vec<String> {
    [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/"), ("/tm", "p/ag/")]
        .map(|(front, back)| format!("{front}{back}"))
        .to_vec()
}

/// Words in the code of the state machine, comments and tests left out, that it must not have.
fn core_problems(name: &str, text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        let line = line.split("//").next().unwrap_or_default();
        let words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        for word in words.filter(|word| NOT_IN_CORE.contains(word)) {
            problems.push(format!("{name}:{number}: `{word}` in the state machine"));
        }
    }
    problems
}

fn manifest_problems(root: &Path, name: &str, text: &str) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if !has_workspace_lints(text) {
        problems.push(format!("{name}: does not take over the lints: `[lints]` with `workspace = true`"));
    }
    let workspace = repo::read(&root.join("Cargo.toml"))?;
    if let Some(folder) = name.strip_suffix("/Cargo.toml").filter(|folder| folder.starts_with("tests/"))
        && !workspace.contains(&format!("\"{folder}\""))
    {
        problems.push(format!("{name}: is not among the members of the workspace, so nothing runs it"));
    }
    Ok(problems)
}

fn has_workspace_lints(manifest: &str) -> bool {
    let after = manifest.lines().skip_while(|line| line.trim() != "[lints]").nth(1);
    after.is_some_and(|line| line.trim() == "workspace = true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_text_has_no_problem() {
        assert!(text_problems("crates/x/src/lib.rs", "//! Words.\n\npub fn f() {}\n").is_empty());
    }

    #[test]
    fn each_rule_about_text_is_found_broken() {
        let rows = [
            ("a.rs", "x\n".repeat(500), "fewer than 500"),
            ("a.rs", format!("// {}\n", "x".repeat(118)), "121 columns"),
            ("a.rs", "no line feed".to_owned(), "line feed"),
            ("a.rs", "x \n".to_owned(), "ends with a space"),
            ("a.rs", format!("// {}: later\n", leftovers()[0]), "left over"),
            ("a.md", format!("see {}x\n", machine_paths()[0]), "path of one machine"),
        ];
        for (name, text, expected) in rows {
            let problems = text_problems(name, &text);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(expected), "{problems:?}");
        }
    }

    #[test]
    fn a_bound_itself_is_not_beyond_it() {
        assert!(text_problems("a.rs", &"x\n".repeat(499)).is_empty());
        assert!(text_problems("a.rs", &format!("{}\n", "ä".repeat(120))).is_empty());
        assert!(text_problems("a.md", &format!("| {} |\n", "x".repeat(200))).is_empty());
    }

    #[test]
    fn the_state_machine_has_no_clock_and_no_hash_map() {
        let text = "use std::time::Instant;\n// an Instant in words\nlet instant = 1;\n#[cfg(test)]\nuse std::fs;\n";
        assert_eq!(
            core_problems("crates/core/src/x.rs", text),
            ["crates/core/src/x.rs:1: `Instant` in the state machine"]
        );
    }

    #[test]
    fn a_manifest_without_the_shared_lints_is_found() {
        assert!(has_workspace_lints("[package]\n\n[lints]\nworkspace = true\n"));
        assert!(!has_workspace_lints("[package]\nworkspace = true\n"));
        assert!(!has_workspace_lints("[lints]\nrust.unsafe_code = \"allow\"\n"));
    }
}
