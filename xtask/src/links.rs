//! Part of `cargo xtask tidy`: every page has one title, every link between pages leads somewhere, and every page can
//! be reached from `README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::repo;

/// A problem for each broken link, each page without exactly one title, and each page that nothing leads to.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for path in repo::files_below(root, &[".md"])? {
        pages.insert(PathBuf::from(repo::shown(root, &path)), repo::read(&path)?);
    }
    Ok(page_problems(&pages, |path| root.join(path).exists()))
}

fn page_problems(pages: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    let mut leads_to: BTreeMap<&Path, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in pages {
        let titles = prose(text).iter().filter(|line| line.starts_with("# ")).count();
        if titles != 1 {
            problems.push(format!("{}: {titles} titles (`# `); a page has one", path.display()));
        }
        for link in links(text) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let heading_is_there =
                || heading.is_empty() || pages.get(&target).is_none_or(|page| anchors(page).contains(heading));
            if !(pages.contains_key(&target) || exists(&target)) {
                problems.push(format!("{}: the link `{link}` leads nowhere", path.display()));
            } else if !heading_is_there() {
                problems.push(format!("{}: the link `{link}` names no heading", path.display()));
            }
            leads_to.entry(path).or_default().insert(target);
        }
    }
    let reached = reached(&leads_to, Path::new("README.md"));
    let lost = pages.keys().filter(|path| !reached.contains(*path));
    problems.extend(lost.map(|path| format!("{}: no link from README.md leads here", path.display())));
    problems
}

fn reached(leads_to: &BTreeMap<&Path, BTreeSet<PathBuf>>, start: &Path) -> BTreeSet<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start.to_path_buf()];
    while let Some(page) = open.pop() {
        if reached.insert(page.clone()) {
            open.extend(leads_to.get(page.as_path()).into_iter().flatten().cloned());
        }
    }
    reached
}

/// The lines outside fenced code.
fn prose(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push(line);
        }
    }
    lines
}

/// The targets of `[words](target)`, those on other hosts left out.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target.to_owned());
            }
            rest = after;
        }
    }
    found
}

/// `target` as seen from the page `from`, without `.` and `..`.
fn resolve(from: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    let joined = from.parent().unwrap_or(Path::new("")).join(target);
    for component in joined.components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::Prefix(_) => path.push(component),
        }
    }
    path
}

/// The anchors that a page's headings get: lowercase, spaces as dashes, no other punctuation.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    headings
        .map(|heading| {
            let kept =
                heading.trim().chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(pages: &[(&str, &str)]) -> String {
        let pages = pages.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        page_problems(&pages, |path| path == Path::new("proto")).join("\n")
    }

    #[test]
    fn links_that_lead_somewhere_are_no_problem() {
        let found = problems(&[
            (
                "README.md",
                "# One\n[a](docs/a.md), [b](docs/a.md#two-words-here), [c](https://example.org/x), [d](proto)\n",
            ),
            ("docs/a.md", "# A\n## Two words, here\n[up](../README.md) and [here](#a)\n```\n# not a title\n```\n"),
        ]);
        assert_eq!(found, "");
    }

    #[test]
    fn broken_links_are_found() {
        let found = problems(&[("README.md", "# One\n[a](gone.md), [b](#nowhere)\n")]);
        assert!(found.contains("`gone.md` leads nowhere") && found.contains("`#nowhere` names no heading"), "{found}");
    }

    #[test]
    fn a_page_has_one_title() {
        let found = problems(&[("README.md", "# One\n# Two\n[a](a.md)\n"), ("a.md", "text\n")]);
        assert!(found.contains("README.md: 2 titles") && found.contains("a.md: 0 titles"), "{found}");
    }

    #[test]
    fn a_page_that_nothing_leads_to_is_found() {
        let found = problems(&[("README.md", "# One\n"), ("docs/lost.md", "# Lost\n")]);
        assert!(found.contains("docs/lost.md: no link from README.md"), "{found}");
    }
}
