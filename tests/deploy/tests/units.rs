//! The systemd units in `deploy/systemd`.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use ag_deploy::{ag, ag_worker, binary, deploy};

/// The units, the program that each runs, and an instance of it.
const UNITS: [(&str, &str, &str); 2] = [("ag@", "ag", "replica-1"), ("ag-worker@", "ag-worker", "thumbnails")];

fn unit(name: &str) -> String {
    std::fs::read_to_string(deploy().join(format!("systemd/{name}.service"))).unwrap()
}

/// The lines of a unit, continued ones joined, without comments.
fn lines(unit: &str) -> Vec<String> {
    let joined = unit.replace("\\\n", " ");
    joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// The values of a key, in order.
fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = lines(unit).into_iter();
    lines.filter_map(|line| line.strip_prefix(&format!("{key}=")).map(|value| value.trim().to_owned())).collect()
}

#[test]
fn units_are_sections_of_keys_with_values() {
    for (name, _, _) in UNITS {
        let mut sections = BTreeSet::new();
        for line in lines(&unit(name)) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                assert!(sections.insert(section.to_owned()), "{name}: [{section}] stands there twice");
                continue;
            }
            let key = line.split_once('=').map(|(key, _)| key).unwrap_or_else(|| panic!("{name}: {line}"));
            assert!(!sections.is_empty(), "{name}: {line} stands before the first section");
            let is_key = key.starts_with(|c: char| c.is_ascii_uppercase()) && key.chars().all(char::is_alphanumeric);
            assert!(is_key, "{name}: {line}");
        }
        assert_eq!(sections.into_iter().collect::<Vec<_>>(), ["Install", "Service", "Unit"], "{name}");
    }
}

#[test]
fn systemd_takes_the_units() {
    let analyze = Command::new("systemd-analyze").arg("--version").output();
    if !analyze.is_ok_and(|output| output.status.success()) {
        eprintln!("there is no systemd-analyze here: only the structure of the units was looked at");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let verify = |name: &str, text: &str| {
        let path = folder.path().join(format!("{name}.service"));
        std::fs::write(&path, text).unwrap();
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (name, program, _) in UNITS {
        // It looks whether the program is there.
        let program = binary(if program == "ag" { "AG_BIN" } else { "AG_WORKER_BIN" }, program);
        let text = unit(name).replace(&installed(&program), &program.to_string_lossy());
        let (good, said) = verify(name, &text);
        assert!(good && !said.contains(name), "{name}: {said}");
        // The control: it would have found something. An unknown key is only warned of.
        let (_, said) = verify(name, &text.replace("[Service]", "[Service]\nNoNewPrivilegess=yes"));
        assert!(said.contains("NoNewPrivilegess"), "{name}: {said}");
    }
}

fn installed(program: &Path) -> String {
    Path::new("/usr/local/bin").join(program.file_name().unwrap()).to_string_lossy().into_owned()
}

#[test]
fn the_programs_know_the_options_of_the_units() {
    for (name, program, instance) in UNITS {
        let starts = values(&unit(name), "ExecStart");
        assert_eq!(starts.len(), 1, "{name}");
        let mut words = starts[0].split_whitespace().map(|word| word.replace("%i", instance));
        assert_eq!(words.next(), Some(format!("/usr/local/bin/{program}")));
        let mut command = if program == "ag" { ag() } else { ag_worker() };
        // Sets what the environment file of the unit sets, so that values are looked at as well.
        let settings = std::fs::read_to_string(deploy().join("systemd/worker-example.env")).unwrap();
        let set = |word: String| {
            let setting = settings.lines().filter_map(|line| line.split_once('='));
            setting.fold(word, |word, (key, value)| word.replace(&format!("${{{key}}}"), value.trim_matches('"')))
        };
        let words: Vec<_> = words.map(set).collect();
        assert!(!words.iter().any(|word| word.contains('%')), "{name}: {words:?}");
        let output = command.args(&words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_instance_finds_its_configuration_and_its_data() {
    let text = unit("ag@");
    assert!(values(&text, "ExecStart")[0].ends_with("--config /etc/ag/%i.toml"));
    assert_eq!(values(&text, "StateDirectory"), ["ag/%i"]);
    for number in 1..=3 {
        let name = format!("replica-{number}");
        let path: PathBuf = deploy().join(format!("cluster/{name}.toml"));
        let config = std::fs::read_to_string(path).unwrap();
        assert!(config.contains(&format!("data = \"/var/lib/ag/{name}\"")), "{name}");
    }
}

#[test]
fn nothing_is_restarted_that_would_only_end_again() {
    let page = deploy().join("../docs/operating/exit-codes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let prevented = values(&unit("ag@"), "RestartPreventExitStatus");
    assert_eq!(prevented, ["2 10 11 13"]);
    assert!(page.contains("on 2, 10, 11 and 13"), "{page}");
}
