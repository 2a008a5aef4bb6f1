//! `cargo xtask codegen`: the Rust code of the protos, which is committed, so that a build needs neither `protoc` nor a
//! build script.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use prost_types::FileDescriptorSet;

use crate::repo;

/// The public contract, the only package whose descriptors the binaries carry: for reflection and the HTTP form.
const PUBLIC_PACKAGE: &str = "agwp.v1";
/// The encoded descriptors of [`PUBLIC_PACKAGE`] and of what it imports.
const DESCRIPTORS: &str = "agwp.v1.binpb";
/// Messages of these packages carry bulk data between replicas and to disk: their `bytes` fields are cheap to clone.
const SHARED_BYTES: [&str; 2] = [".agwp.peer.v1", ".agwp.storage.v1"];

/// Writes the generated files.
pub fn write(root: &Path) -> Result<()> {
    let folder = generated_folder(root);
    let wanted = generate(root)?;
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for stale in present(&folder)?.keys().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(stale)).with_context(|| format!("remove {stale}"))?;
        println!("removed {stale}");
    }
    for (name, bytes) in &wanted {
        let path = folder.join(name);
        if fs::read(&path).ok().as_ref() != Some(bytes) {
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
            println!("wrote {}", repo::shown(root, &path));
        }
    }
    Ok(())
}

/// A problem for each generated file that is not what the protos say.
pub fn check(root: &Path) -> Result<Vec<String>> {
    Ok(different(&generate(root)?, &present(&generated_folder(root))?))
}

fn different(wanted: &BTreeMap<String, Vec<u8>>, present: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let changed = wanted.iter().filter(|(name, bytes)| present.get(*name) != Some(bytes)).map(|(name, _)| name);
    let stale = present.keys().filter(|name| !wanted.contains_key(*name));
    changed
        .chain(stale)
        .map(|name| format!("crates/proto/src/generated/{name} is not what proto/ says: run `cargo xtask codegen`"))
        .collect()
}

/// All descriptors of our protos and of their imports, extension options and comments included, encoded.
pub fn descriptors(root: &Path, package: Option<&str>) -> Result<Vec<u8>> {
    let includes = root.join("proto");
    let ours = includes.join("agwp");
    let folder = match package {
        Some(package) => includes.join(package.replace('.', "/")),
        None => ours,
    };
    let mut compiler = protox::Compiler::new([&includes]).context("open proto/")?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(repo::files_below(&folder, &[".proto"])?).context("compile proto/")?;
    Ok(compiler.encode_file_descriptor_set())
}

fn generated_folder(root: &Path) -> PathBuf {
    root.join("crates/proto/src/generated")
}

/// File name → contents of all that is generated.
fn generate(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    use prost::Message as _;

    let out = tempfile::tempdir().context("make a folder for the generated code")?;
    let all = descriptors(root, None)?;
    let mut set = FileDescriptorSet::decode(all.as_slice()).context("decode the descriptors of proto/")?;
    // Annotations are only options, which leave no trace in the code. The well-known types stay: prost must see them.
    set.file.retain(|file| file.package() != "google.api");
    let mut builder = tonic_prost_build::configure()
        .btree_map(".")
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(out.path());
    for package in SHARED_BYTES {
        builder = builder.bytes(package);
    }
    builder.compile_fds(set).context("generate Rust code")?;

    let mut files = present(out.path())?;
    files.insert(DESCRIPTORS.to_owned(), descriptors(root, Some(PUBLIC_PACKAGE))?);
    Ok(files)
}

/// File name → contents of what lies in `folder`.
fn present(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for path in repo::files_below(folder, &[".rs", ".binpb"])? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.insert(name, fs::read(&path).with_context(|| format!("read {}", path.display()))?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
        files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
    }

    #[test]
    fn a_changed_a_missing_and_a_stale_file_are_found() {
        let wanted = files(&[("same.rs", b"1"), ("changed.rs", b"2"), ("missing.rs", b"3")]);
        let present = files(&[("same.rs", b"1"), ("changed.rs", b"other"), ("stale.rs", b"4")]);
        let problems = different(&wanted, &present).join("\n");
        for name in ["changed.rs", "missing.rs", "stale.rs"] {
            assert!(problems.contains(name), "{problems}");
        }
        assert!(!problems.contains("same.rs"), "{problems}");
    }

    #[test]
    fn the_descriptors_keep_the_http_annotations_and_the_comments() {
        let bytes = descriptors(&repo::root(), Some(PUBLIC_PACKAGE)).unwrap();
        let pool = prost_reflect::DescriptorPool::decode(bytes.as_slice()).unwrap();
        let http = pool.get_extension_by_name("google.api.http").unwrap();
        let service = pool.get_service_by_name("agwp.v1.JobService").unwrap();
        let enqueue = service.methods().find(|method| method.name() == "EnqueueJob").unwrap();
        assert!(enqueue.options().has_extension(&http));
        let file = service.parent_file();
        let info = file.file_descriptor_proto().source_code_info.as_ref().unwrap();
        assert!(info.location.iter().any(|location| location.leading_comments().contains("Puts one job into a queue")));
    }
}
