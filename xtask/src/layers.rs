//! `cargo xtask layers`: the table under "Layers" in `docs/ARCHITECTURE.md` is the design, the manifests are the fact.
//! Neither may say more than the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::repo;

const PAGE: &str = "docs/ARCHITECTURE.md";
/// The header of the table, by which it is found.
const HEADER: [&str; 5] = ["layer", "crate", "purpose", "depends on", "alone names"];
/// Crates that may be named only from some layer up, and who else may: `auth` names tokio for its IO traits.
const FROM_LAYER: [(&str, u32, &[&str]); 2] = [("tokio", 3, &["auth"]), ("tracing", 2, &[])];

/// One crate as the table has it.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    layer: u32,
    depends_on: BTreeSet<String>,
    alone_names: BTreeSet<String>,
}

/// One crate as its manifest has it. Dev-dependencies are left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Manifest {
    ours: BTreeSet<String>,
    foreign: BTreeSet<String>,
}

/// A problem for each difference between the table and the manifests.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let table = parse_table(&repo::read(&root.join(PAGE))?)?;
    let metadata = repo::cargo_metadata(root, &["--no-deps"])?;
    Ok(compare(&table, &manifests(&metadata)?))
}

fn parse_table(page: &str) -> Result<BTreeMap<String, Row>> {
    let mut rows = BTreeMap::new();
    let mut lines = page.lines().skip_while(|line| cells(line) != HEADER);
    ensure!(lines.next().is_some(), "{PAGE} has no table with the columns {HEADER:?}");
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells = cells(line);
        let [layer, name, _, depends_on, alone_names] = cells.as_slice() else {
            bail!("{PAGE}: a row with {} columns: {line}", cells.len());
        };
        let layer = layer.strip_prefix('L').and_then(|number| number.parse().ok());
        let row = Row {
            layer: layer.with_context(|| format!("{PAGE}: no layer such as L3 in {line}"))?,
            depends_on: names(depends_on),
            alone_names: names(alone_names),
        };
        ensure!(rows.insert((*name).to_owned(), row).is_none(), "{PAGE}: two rows for {name}");
    }
    Ok(rows)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// `core, proto` → both; `–` → none.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split(',').map(str::trim).filter(|name| !matches!(*name, "" | "–" | "-")).map(str::to_owned).collect()
}

fn manifests(metadata: &Value) -> Result<BTreeMap<String, Manifest>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut manifests = BTreeMap::new();
    for package in packages {
        let path = package["manifest_path"].as_str().unwrap_or_default();
        let Some(folder) = Path::new(path).parent() else { continue };
        if folder.parent().is_none_or(|parent| !parent.ends_with("crates")) {
            continue;
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        manifests.insert(name, manifest(package));
    }
    Ok(manifests)
}

fn manifest(package: &Value) -> Manifest {
    let mut manifest = Manifest::default();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let name = dependency["name"].as_str().unwrap_or_default();
        if dependency["kind"].as_str() == Some("dev") {
            continue;
        }
        match dependency["path"].as_str() {
            Some(_) => manifest.ours.insert(name.strip_prefix("ag-").unwrap_or(name).to_owned()),
            None => manifest.foreign.insert(name.to_owned()),
        };
    }
    manifest
}

fn compare(table: &BTreeMap<String, Row>, manifests: &BTreeMap<String, Manifest>) -> Vec<String> {
    let mut problems = Vec::new();
    for name in manifests.keys().filter(|name| !table.contains_key(*name)) {
        problems.push(format!("crates/{name} has no row in the layer table of {PAGE}"));
    }
    for (name, row) in table {
        let Some(manifest) = manifests.get(name) else {
            problems.push(format!("{PAGE} has a row for `{name}`, and there is no crates/{name}"));
            continue;
        };
        for extra in manifest.ours.difference(&row.depends_on) {
            problems.push(format!("crates/{name} depends on `{extra}`, which its row in {PAGE} does not allow"));
        }
        for unused in row.depends_on.difference(&manifest.ours) {
            problems.push(format!("{PAGE} lets `{name}` depend on `{unused}`, and its manifest does not name it"));
        }
        for dependency in &row.depends_on {
            if table.get(dependency).is_some_and(|lower| lower.layer >= row.layer) {
                problems.push(format!("{PAGE}: `{name}` and `{dependency}`: a crate depends only on lower layers"));
            }
        }
        problems.extend(foreign_problems(name, row, manifest, manifests));
    }
    problems
}

fn foreign_problems(name: &str, row: &Row, manifest: &Manifest, manifests: &BTreeMap<String, Manifest>) -> Vec<String> {
    let mut problems = Vec::new();
    for alone in &row.alone_names {
        if !manifest.foreign.contains(alone) {
            problems.push(format!("{PAGE} says that `{name}` alone names `{alone}`, and its manifest does not"));
        }
        for (other, _) in manifests.iter().filter(|(other, it)| *other != name && it.foreign.contains(alone)) {
            problems.push(format!("crates/{other} names `{alone}`, which is for crates/{name} alone"));
        }
    }
    for (foreign, from, others) in FROM_LAYER {
        if row.layer < from && !others.contains(&name) && manifest.foreign.contains(foreign) {
            problems.push(format!("crates/{name} names `{foreign}`, which is for layer L{from} and up"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
# Title

| layer | crate | purpose | depends on | alone names |
| --- | --- | --- | --- | --- |
| L0 | core | decides | – | – |
| L2 | store | keeps | core | rocksdb |

After it.
";

    fn manifest(ours: &[&str], foreign: &[&str]) -> Manifest {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Manifest { ours: set(ours), foreign: set(foreign) }
    }

    fn problems(manifests: &[(&str, Manifest)]) -> String {
        let manifests =
            manifests.iter().map(|(name, it)| ((*name).to_owned(), manifest_copy(it))).collect::<BTreeMap<_, _>>();
        compare(&parse_table(TABLE).unwrap(), &manifests).join("\n")
    }

    fn manifest_copy(it: &Manifest) -> Manifest {
        Manifest { ours: it.ours.clone(), foreign: it.foreign.clone() }
    }

    #[test]
    fn manifests_that_say_what_the_table_says_have_no_problem() {
        let found = problems(&[("core", manifest(&[], &["sha2"])), ("store", manifest(&["core"], &["rocksdb"]))]);
        assert_eq!(found, "");
    }

    #[test]
    fn an_extra_dependency_is_found() {
        let found = problems(&[("core", manifest(&["store"], &[])), ("store", manifest(&["core"], &["rocksdb"]))]);
        assert!(found.contains("crates/core depends on `store`"), "{found}");
    }

    #[test]
    fn a_dependency_that_only_the_table_has_is_found() {
        let found = problems(&[("core", manifest(&[], &[])), ("store", manifest(&[], &["rocksdb"]))]);
        assert!(found.contains("lets `store` depend on `core`"), "{found}");
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate_are_found() {
        let found = problems(&[("core", manifest(&[], &[])), ("other", manifest(&[], &[]))]);
        assert!(found.contains("crates/other has no row"), "{found}");
        assert!(found.contains("no crates/store"), "{found}");
    }

    #[test]
    fn a_second_crate_that_names_an_exclusive_dependency_is_found() {
        let found =
            problems(&[("core", manifest(&[], &["rocksdb"])), ("store", manifest(&["core"], &["rocksdb", "tokio"]))]);
        assert!(found.contains("crates/core names `rocksdb`"), "{found}");
        assert!(found.contains("crates/store names `tokio`, which is for layer L3"), "{found}");
    }

    #[test]
    fn an_exclusive_dependency_that_nobody_names_is_found() {
        let found = problems(&[("core", manifest(&[], &[])), ("store", manifest(&["core"], &[]))]);
        assert!(found.contains("`store` alone names `rocksdb`"), "{found}");
    }

    #[test]
    fn a_dependency_on_the_same_or_a_higher_layer_is_found_in_the_table_itself() {
        let table = TABLE.replace("| L0 | core | decides | – |", "| L0 | core | decides | store |");
        let found = compare(
            &parse_table(&table).unwrap(),
            &BTreeMap::from([
                ("core".to_owned(), manifest(&["store"], &[])),
                ("store".to_owned(), manifest(&["core"], &["rocksdb"])),
            ]),
        );
        assert!(found.iter().any(|problem| problem.contains("only on lower layers")), "{found:?}");
    }

    #[test]
    fn dev_dependencies_and_packages_outside_crates_are_left_out() {
        let metadata = serde_json::json!({"packages": [
            {"manifest_path": "/r/crates/store/Cargo.toml", "dependencies": [
                {"name": "ag-core", "kind": null, "path": "/r/crates/core"},
                {"name": "rocksdb", "kind": null},
                {"name": "tokio", "kind": "dev"},
            ]},
            {"manifest_path": "/r/tests/demo/Cargo.toml", "dependencies": []},
        ]});
        let found = manifests(&metadata).unwrap();
        assert_eq!(found, BTreeMap::from([("store".to_owned(), manifest(&["core"], &["rocksdb"]))]));
    }
}
