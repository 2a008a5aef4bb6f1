//! `cargo xtask dependencies`: where all that is compiled in comes from, and under which licence; and that each
//! dependency that we name has its reason in `docs/DEPENDENCIES.md`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::repo;

const PAGE: &str = "docs/DEPENDENCIES.md";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Licences that ask for no more than their text to be passed on.
const LICENCES: [&str; 13] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "CDLA-Permissive-2.0",
];

/// A problem for each package of a foreign source or licence, and for each dependency without a reason.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let host = repo::output_of(root, "rustc", &["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let metadata = repo::cargo_metadata(root, &["--filter-platform", host])?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;

    let mut problems: Vec<String> = packages.iter().flat_map(package_problems).collect();
    problems.extend(unused(packages)?);
    problems.extend(reason_problems(&named(packages), &reasons(&repo::read(&root.join(PAGE))?)));
    Ok(problems)
}

fn package_problems(package: &Value) -> Vec<String> {
    let label =
        format!("{} {}", package["name"].as_str().unwrap_or_default(), package["version"].as_str().unwrap_or_default());
    let mut problems = Vec::new();
    if package["source"].as_str().is_some_and(|source| source != REGISTRY) {
        problems.push(format!("{label} comes from {}, not from the registry", package["source"]));
    }
    match package["license"].as_str() {
        Some(licence) if allowed(licence) => {}
        Some(licence) => problems.push(format!("{label} is under {licence}, which is not among the allowed licences")),
        None => problems.push(format!("{label} names no licence")),
    }
    problems
}

/// Whether an SPDX expression can be met with the allowed licences alone.
fn allowed(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], "");
    // Taking the brackets away is exact unless an OR stands within an AND; then every part is asked for, which is the
    // stricter reading.
    if expression.contains('(') && expression.contains(" AND ") {
        return flat.replace(" OR ", " AND ").split(" AND ").all(|part| LICENCES.contains(&part.trim()));
    }
    flat.replace('/', " OR ")
        .split(" OR ")
        .any(|choice| choice.split(" AND ").all(|part| LICENCES.contains(&part.trim())))
}

/// The foreign packages that our own manifests name, for any purpose.
fn named(packages: &[Value]) -> BTreeSet<String> {
    let ours = packages.iter().filter(|package| package["source"].is_null());
    ours.flat_map(|package| package["dependencies"].as_array().into_iter().flatten())
        .filter(|dependency| dependency["path"].is_null())
        .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
        .collect()
}

/// Dependencies that a crate of ours names and no source file of it mentions.
fn unused(packages: &[Value]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for package in packages.iter().filter(|package| package["source"].is_null()) {
        let Some(folder) = package["manifest_path"].as_str().and_then(|path| Path::new(path).parent()) else {
            continue;
        };
        let mut sources = String::new();
        for path in repo::files_below(folder, &[".rs"])? {
            sources.push_str(&repo::read(&path)?);
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let name = dependency["rename"].as_str().or(dependency["name"].as_str()).unwrap_or_default();
            if !mentions(&sources, &name.replace('-', "_")) {
                problems.push(format!("{} names `{name}` and does not use it", package["name"]));
            }
        }
    }
    Ok(problems)
}

/// Whether `word` stands in `text` as a whole word.
fn mentions(text: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The packages that have a row: `| name | why |`.
fn reasons(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name.to_owned()).collect()
}

fn reason_problems(named: &BTreeSet<String>, reasons: &BTreeSet<String>) -> Vec<String> {
    let missing = named.difference(reasons).map(|name| format!("{PAGE} does not say why we depend on `{name}`"));
    let stale = reasons.difference(named).map(|name| format!("{PAGE} has a row for `{name}`, which nothing names"));
    missing.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_judged_by_their_alternatives() {
        for good in
            ["MIT", "MIT OR GPL-3.0-only", "MIT/Apache-2.0", "Apache-2.0 AND ISC", "(MIT OR Apache-2.0) AND ISC"]
        {
            assert!(allowed(good), "{good}");
        }
        for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR GPL-3.0-only) AND ISC", ""] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn a_package_from_git_and_one_without_a_licence_are_found() {
        let package = |source: &str, licence: Option<&str>| {
            let mut package = serde_json::json!({"name": "x", "version": "1.0.0", "source": source});
            package["license"] = licence.into();
            package
        };
        assert!(package_problems(&package(REGISTRY, Some("MIT"))).is_empty());
        assert_eq!(package_problems(&package("git+https://example.org/x", Some("MIT"))).len(), 1);
        assert_eq!(package_problems(&package(REGISTRY, None)).len(), 1);
        assert_eq!(package_problems(&package(REGISTRY, Some("AGPL-3.0-only"))).len(), 1);
    }

    #[test]
    fn only_whole_words_count_as_use() {
        assert!(mentions("use bytes::Bytes;", "bytes"));
        assert!(!mentions("use http_body::Body; let bytes_left = 1; // xhttp", "http"));
        assert!(!mentions("let max_bytes = 1;", "bytes"));
    }

    #[test]
    fn reasons_and_manifests_are_compared_in_both_directions() {
        let named = BTreeSet::from(["prost".to_owned(), "tonic".to_owned()]);
        let page = "# Title\n\n| package | why |\n| --- | --- |\n| `prost` | messages |\n| `left` | gone |\n";
        let problems = reason_problems(&named, &reasons(page)).join("\n");
        assert!(problems.contains("why we depend on `tonic`") && problems.contains("row for `left`"), "{problems}");
        assert!(!problems.contains("`prost`"), "{problems}");
    }
}
