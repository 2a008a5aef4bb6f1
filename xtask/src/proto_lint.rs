//! `cargo xtask proto`, first half: names, folders and comments in our protos.

use std::path::Path;

use anyhow::{Context, Result};
use prost_reflect::{DescriptorPool, EnumDescriptor, FileDescriptor, MessageDescriptor, ServiceDescriptor};

use crate::codegen;

/// A problem for each broken rule.
pub fn check(root: &Path) -> Result<Vec<String>> {
    lint(&codegen::descriptors(root, None)?)
}

fn lint(descriptors: &[u8]) -> Result<Vec<String>> {
    let pool = DescriptorPool::decode(descriptors).context("decode the descriptors of proto/")?;
    let mut problems = Vec::new();
    for file in pool.files().filter(|file| file.package_name().starts_with("agwp.")) {
        file_problems(&file, &mut problems);
        for message in file.messages() {
            message_problems(&message, &mut problems);
        }
        for enumeration in file.enums() {
            enum_problems(&enumeration, &mut problems);
        }
        for service in file.services() {
            service_problems(&service, &mut problems);
        }
    }
    Ok(problems)
}

fn file_problems(file: &FileDescriptor, problems: &mut Vec<String>) {
    let (folder, name) = file.name().rsplit_once('/').unwrap_or(("", file.name()));
    if folder != file.package_name().replace('.', "/") {
        problems.push(format!("{}: the package {} is not its folder", file.name(), file.package_name()));
    }
    if !is_snake(name.trim_end_matches(".proto")) {
        problems.push(format!("{}: a file's name is lower_snake_case", file.name()));
    }
    let version = file.package_name().rsplit('.').next().unwrap_or_default();
    if version.strip_prefix('v').is_none_or(|number| number.parse::<u32>().is_err()) {
        problems.push(format!("{}: the package {} ends with no version", file.name(), file.package_name()));
    }
    if file.file_descriptor_proto().syntax() != "proto3" {
        problems.push(format!("{}: not proto3", file.name()));
    }
    // Path 12 is the syntax line, whose leading comment is that of the file.
    if !has_comment(file, &[12]) {
        problems.push(format!("{}: no comment at its head", file.name()));
    }
}

fn message_problems(message: &MessageDescriptor, problems: &mut Vec<String>) {
    if message.is_map_entry() {
        return;
    }
    let name = message.full_name();
    if !is_pascal(message.name()) {
        problems.push(format!("{name}: a message's name is PascalCase"));
    }
    comment(&message.parent_file(), message.path(), name, problems);
    for field in message.fields() {
        if !is_snake(field.name()) {
            problems.push(format!("{}: a field's name is lower_snake_case", field.full_name()));
        }
        comment(&message.parent_file(), field.path(), field.full_name(), problems);
    }
    for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        if !is_snake(oneof.name()) {
            problems.push(format!("{}: a oneof's name is lower_snake_case", oneof.full_name()));
        }
        comment(&message.parent_file(), oneof.path(), oneof.full_name(), problems);
    }
    message.child_messages().for_each(|child| message_problems(&child, problems));
    message.child_enums().for_each(|child| enum_problems(&child, problems));
}

fn enum_problems(enumeration: &EnumDescriptor, problems: &mut Vec<String>) {
    let name = enumeration.full_name();
    if !is_pascal(enumeration.name()) {
        problems.push(format!("{name}: an enum's name is PascalCase"));
    }
    comment(&enumeration.parent_file(), enumeration.path(), name, problems);
    let zero = format!("{}_UNSPECIFIED", screaming(enumeration.name()));
    if enumeration.get_value(0).is_none_or(|value| value.name() != zero) {
        problems.push(format!("{name}: the value 0 is called {zero}"));
    }
    for value in enumeration.values() {
        if value.name() != value.name().to_uppercase() {
            problems.push(format!("{}: an enum value's name is UPPER_SNAKE_CASE", value.full_name()));
        }
        comment(&enumeration.parent_file(), value.path(), value.full_name(), problems);
    }
}

fn service_problems(service: &ServiceDescriptor, problems: &mut Vec<String>) {
    let name = service.full_name();
    if !(is_pascal(service.name()) && service.name().ends_with("Service")) {
        problems.push(format!("{name}: a service's name is PascalCase and ends with Service"));
    }
    comment(&service.parent_file(), service.path(), name, problems);
    let public = service.parent_file().package_name() == "agwp.v1";
    let http = service.parent_pool().get_extension_by_name("google.api.http");
    for method in service.methods() {
        let full_name = method.full_name();
        comment(&service.parent_file(), method.path(), full_name, problems);
        if !is_pascal(method.name()) {
            problems.push(format!("{full_name}: a method's name is PascalCase"));
        }
        if public && method.input().name() != format!("{}Request", method.name()) {
            problems.push(format!("{full_name}: takes {}, not {}Request", method.input().name(), method.name()));
        }
        let has_http = http.as_ref().is_some_and(|http| method.options().has_extension(http));
        if public && !has_http {
            problems.push(format!("{full_name}: has no google.api.http form"));
        }
    }
}

fn comment(file: &FileDescriptor, path: &[i32], name: &str, problems: &mut Vec<String>) {
    if !has_comment(file, path) {
        problems.push(format!("{name}: has no comment"));
    }
}

fn has_comment(file: &FileDescriptor, path: &[i32]) -> bool {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let mut places = info.into_iter().flat_map(|info| &info.location).filter(|place| place.path == path);
    places.any(|place| !place.leading_comments().trim().is_empty() || !place.leading_detached_comments.is_empty())
}

fn is_snake(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
        && !name.contains("__")
        && !name.ends_with('_')
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric())
}

/// `JobState` → `JOB_STATE`.
fn screaming(pascal: &str) -> String {
    let mut name = String::new();
    for letter in pascal.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of one file of the package `agwp.test.v1`.
    fn problems(path: &str, text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let mut compiler = protox::Compiler::new([folder.path()]).unwrap();
        compiler.include_imports(true).include_source_info(true).open_file(path).unwrap();
        lint(&compiler.encode_file_descriptor_set()).unwrap()
    }

    const GOOD: &str = "// The head.
syntax = \"proto3\";
package agwp.test.v1;
// A message.
message Word {
  // A field.
  string text = 1;
  // An enum.
  enum Kind {
    // Not known.
    KIND_UNSPECIFIED = 0;
  }
}
// A service.
service WordService {
  // A method.
  rpc Say(Word) returns (Word);
}
";

    #[test]
    fn a_good_file_has_no_problem() {
        assert_eq!(problems("agwp/test/v1/word.proto", GOOD), [""; 0]);
    }

    #[test]
    fn each_rule_is_found_broken() {
        let rows = [
            ("// The head.\n", "", "no comment at its head"),
            ("  // A field.\n", "", "agwp.test.v1.Word.text: has no comment"),
            ("  // A method.\n", "", "agwp.test.v1.WordService.Say: has no comment"),
            ("KIND_UNSPECIFIED", "UNKNOWN", "KIND_UNSPECIFIED"),
            ("string text", "string Text", "lower_snake_case"),
            ("WordService", "Words", "ends with Service"),
            ("Word {", "word {", "PascalCase"),
            ("agwp.test.v1", "agwp.test", "not its folder"),
        ];
        for (from, to, expected) in rows {
            let mut text = GOOD.replacen(from, to, 1);
            if from == "Word {" {
                text = text.replace("(Word)", "(word)");
            }
            let problems = problems("agwp/test/v1/word.proto", &text);
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{from:?}: {problems:?}");
        }
    }
}
