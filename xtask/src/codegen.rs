//! `cargo xtask codegen`: the Rust code of the protos, which is committed, so that a build needs neither `protoc` nor a
//! build script.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prost_types::FileDescriptorSet;

use crate::repo;

/// The public contract, the only package whose descriptors the binaries carry: for reflection and the HTTP form.
const PUBLIC_PACKAGE: &str = "agwp.v1";
/// The encoded descriptors of [`PUBLIC_PACKAGE`] and of what it imports.
const DESCRIPTORS: &str = "agwp.v1.binpb";
/// Messages of these packages carry bulk data between replicas and to disk: their `bytes` fields are cheap to clone.
const SHARED_BYTES: [&str; 2] = [".agwp.peer.v1", ".agwp.storage.v1"];

/// Writes the generated files.
pub fn write() -> Result<()> {
    let root = repo::root();
    let folder = generated_folder(&root);
    let wanted = generate(&root)?;
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for stale in present(&folder)?.keys().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(stale)).with_context(|| format!("remove {stale}"))?;
    }
    for (name, bytes) in &wanted {
        let path = folder.join(name);
        if fs::read(&path).ok().as_ref() != Some(bytes) {
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
            println!("wrote {}", repo::shown(&root, &path));
        }
    }
    Ok(())
}

/// Fails when the generated files are not what the protos say.
pub fn check() -> Result<()> {
    let root = repo::root();
    let wanted = generate(&root)?;
    let present = present(&generated_folder(&root))?;
    let mut different: Vec<&String> = wanted.iter().filter(|(name, bytes)| present.get(*name) != Some(bytes)).map(|(name, _)| name).collect();
    different.extend(present.keys().filter(|name| !wanted.contains_key(*name)));
    if different.is_empty() {
        return Ok(());
    }
    bail!("{different:?} in crates/proto/src/generated are not what proto/ says; run `cargo xtask codegen`")
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
