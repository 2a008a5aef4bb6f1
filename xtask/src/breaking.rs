//! `cargo xtask proto`, second half: what a release has promised still holds. `proto/frozen/<release>.binpb` holds the
//! descriptors of all protos as they were released; files are added there, and never changed.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, MessageDescriptor, MethodDescriptor};

use crate::{codegen, repo};

const FROZEN: &str = "proto/frozen";

/// A problem for each promise of a frozen release that today's protos break.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let today = codegen::descriptors(root, None)?;
    let mut problems = edited(root)?;
    for path in repo::files_below(&root.join(FROZEN), &[".binpb"])? {
        let frozen = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let release = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        problems.extend(compare(&frozen, &today)?.into_iter().map(|problem| format!("{problem} (since {release})")));
    }
    Ok(problems)
}

/// Keeps today's protos as the contract of `release`.
pub fn freeze(root: &Path, release: &str) -> Result<()> {
    let path = root.join(FROZEN).join(format!("{release}.binpb"));
    ensure!(!path.exists(), "{} is there already; a released contract does not change", repo::shown(root, &path));
    std::fs::create_dir_all(root.join(FROZEN)).with_context(|| format!("make {FROZEN}"))?;
    std::fs::write(&path, codegen::descriptors(root, None)?).with_context(|| format!("write {}", path.display()))?;
    println!("wrote {}", repo::shown(root, &path));
    Ok(())
}

/// Frozen files that are not what the first commit that had them says. Without git there is nothing to compare with.
fn edited(root: &Path) -> Result<Vec<String>> {
    if !root.join(".git").exists() {
        return Ok(Vec::new());
    }
    let changes = repo::output_of(root, "git", &["log", "--diff-filter=MD", "--name-only", "--format=", "--", FROZEN])?;
    let uncommitted = repo::output_of(root, "git", &["diff", "--diff-filter=MD", "--name-only", "HEAD", "--", FROZEN])?;
    let names = changes.lines().chain(uncommitted.lines()).filter(|name| !name.is_empty());
    Ok(names.map(|name| format!("{name}: a frozen file was changed or removed")).collect())
}

fn compare(frozen: &[u8], today: &[u8]) -> Result<Vec<String>> {
    let frozen = DescriptorPool::decode(frozen).context("decode a frozen contract")?;
    let today = DescriptorPool::decode(today).context("decode the descriptors of proto/")?;
    let mut problems = Vec::new();
    for message in frozen.all_messages().filter(|message| message.package_name().starts_with("agwp.")) {
        match today.get_message_by_name(message.full_name()) {
            Some(now) => compare_messages(&message, &now, &mut problems),
            None => problems.push(format!("{}: the message is gone", message.full_name())),
        }
    }
    for enumeration in frozen.all_enums().filter(|enumeration| enumeration.package_name().starts_with("agwp.")) {
        match today.get_enum_by_name(enumeration.full_name()) {
            Some(now) => compare_enums(&enumeration, &now, &mut problems),
            None => problems.push(format!("{}: the enum is gone", enumeration.full_name())),
        }
    }
    for method in frozen.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
        let service = today.get_service_by_name(method.parent_service().full_name());
        let now = service.and_then(|service| service.methods().find(|now| now.name() == method.name()));
        match now {
            Some(now) => compare_methods(&method, &now, &mut problems),
            None => problems.push(format!("{}: the method is gone", method.full_name())),
        }
    }
    Ok(problems)
}

fn compare_messages(then: &MessageDescriptor, now: &MessageDescriptor, problems: &mut Vec<String>) {
    for field in then.fields() {
        let Some(current) = now.get_field(field.number()) else {
            problems.push(format!("{}: the field {} is gone", field.full_name(), field.number()));
            continue;
        };
        let (was, is) = (shape(&field), shape(&current));
        if was != is {
            problems.push(format!("{}: was `{was}` and is `{is}`", field.full_name()));
        }
    }
}

/// All of a field that bytes, JSON or generated code depend on.
fn shape(field: &FieldDescriptor) -> String {
    let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
    let oneof = oneof.map(|oneof| format!(" in {}", oneof.name())).unwrap_or_default();
    let presence = if field.supports_presence() { "present-or-not " } else { "" };
    format!("{presence}{:?} {:?} {} {}{oneof}", field.cardinality(), field.kind(), field.name(), field.json_name())
}

fn compare_enums(then: &EnumDescriptor, now: &EnumDescriptor, problems: &mut Vec<String>) {
    for value in then.values() {
        if now.get_value(value.number()).is_none_or(|current| current.name() != value.name()) {
            problems.push(format!("{}: the value {} has gone or has a new name", value.full_name(), value.number()));
        }
    }
}

fn compare_methods(then: &MethodDescriptor, now: &MethodDescriptor, problems: &mut Vec<String>) {
    let signature = |method: &MethodDescriptor| {
        let stream = |yes: bool| if yes { "stream " } else { "" };
        format!(
            "{}{} → {}{} {:?}",
            stream(method.is_client_streaming()),
            method.input().full_name(),
            stream(method.is_server_streaming()),
            method.output().full_name(),
            http_form(method)
        )
    };
    if signature(then) != signature(now) {
        problems.push(format!("{}: was `{}` and is `{}`", then.full_name(), signature(then), signature(now)));
    }
}

fn http_form(method: &MethodDescriptor) -> Option<String> {
    let http = method.parent_pool().get_extension_by_name("google.api.http")?;
    let options = method.options();
    options.has_extension(&http).then(|| options.get_extension(&http).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: &str = "syntax = \"proto3\";
package agwp.test.v1;
message Word {
  string text = 1;
  optional uint32 size = 2;
}
enum Kind {
  KIND_UNSPECIFIED = 0;
  NOUN = 1;
}
service WordService {
  rpc Say(Word) returns (Word);
}
";

    fn compiled(text: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("word.proto"), text).unwrap();
        let mut compiler = protox::Compiler::new([folder.path()]).unwrap();
        compiler.open_file("word.proto").unwrap();
        compiler.encode_file_descriptor_set()
    }

    #[test]
    fn additions_break_nothing() {
        let now = THEN
            .replace("= 2;\n", "= 2;\n  bytes more = 3;\n")
            .replace("NOUN = 1;\n", "NOUN = 1;\n  VERB = 2;\n")
            .replace("(Word);\n", "(Word);\n  rpc Sing(Word) returns (Word);\n");
        assert_eq!(compare(&compiled(THEN), &compiled(&now)).unwrap(), [""; 0]);
    }

    #[test]
    fn each_break_is_found() {
        let rows = [
            ("  string text = 1;\n", "", "Word.text: the field 1 is gone"),
            ("string text = 1", "bytes text = 1", "Word.text: was"),
            ("string text = 1", "string words = 1", "Word.text: was"),
            ("string text = 1", "repeated string text = 1", "Word.text: was"),
            ("optional uint32", "uint32", "Word.size: was"),
            ("size = 2", "size = 3", "Word.size: the field 2 is gone"),
            ("NOUN = 1", "VERB = 1", "NOUN: the value 1"),
            ("rpc Say", "rpc Tell", "WordService.Say: the method is gone"),
            ("returns (Word)", "returns (stream Word)", "WordService.Say: was"),
            ("enum Kind", "enum Sort", "Kind: the enum is gone"),
        ];
        for (from, to, expected) in rows {
            let now = THEN.replacen(from, to, 1);
            let problems = compare(&compiled(THEN), &compiled(&now)).unwrap();
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{to:?}: {problems:?}");
        }
    }
}
