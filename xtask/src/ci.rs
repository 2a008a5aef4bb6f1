//! `cargo xtask ci`: everything that must hold, the cheap first. `cargo xtask fix`: what a program can repair.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{breaking, codegen, dependencies, layers, proto_lint, repo, tidy};

/// How much of it to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// No tests.
    Quick,
    /// What CI runs.
    Usual,
    /// The ignored tests as well.
    Long,
}

/// Runs the checks, all of them even if one fails, then the tests if all checks held. Changes nothing in the checkout.
pub fn run(root: &Path, extent: Extent) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("format", || cargo(root, &["fmt", "--all", "--check"]));
    steps.run("tidy", || repo::report(tidy::check(root)?));
    steps.run("layers", || repo::report(layers::check(root)?));
    steps.run("dependencies", || repo::report(dependencies::check(root)?));
    steps.run("codegen", || repo::report(codegen::check(root)?));
    steps.run("proto lint", || repo::report(proto_lint::check(root)?));
    steps.run("proto breaking", || repo::report(breaking::check(root)?));
    steps.run("clippy", || clippy(root));
    steps.run("documentation", || documentation(root));
    if extent != Extent::Quick && steps.failed.is_empty() {
        steps.run("tests", || tests(root, extent));
        // nextest does not run the examples in the documentation.
        steps.run("doc tests", || cargo(root, &["test", "--locked", "--workspace", "--doc", "--quiet"]));
    }
    steps.finish()
}

/// Formats, and generates code.
pub fn fix(root: &Path) -> Result<()> {
    codegen::write(root)?;
    cargo(root, &["fmt", "--all"])
}

/// Warnings are errors on the oldest compiler that this workspace supports. A newer one knows lints that nobody here
/// has seen yet, and only says so.
fn clippy(root: &Path) -> Result<()> {
    let mut arguments = vec!["clippy", "--locked", "--workspace", "--all-targets", "--"];
    arguments.push(if is_oldest_compiler(root)? { "--deny=warnings" } else { "--warn=warnings" });
    cargo(root, &arguments)
}

/// Broken links in doc comments are errors, in the same way.
fn documentation(root: &Path) -> Result<()> {
    let arguments = ["doc", "--locked", "--workspace", "--no-deps", "--document-private-items", "--quiet"];
    let flags = if is_oldest_compiler(root)? { "--deny=warnings" } else { "--warn=warnings" };
    let mut command = repo::cargo_command();
    let status = command.args(arguments).env("RUSTDOCFLAGS", flags).current_dir(root).status();
    let status = status.context("start cargo doc")?;
    if !status.success() {
        bail!("cargo doc failed ({status})");
    }
    Ok(())
}

fn is_oldest_compiler(root: &Path) -> Result<bool> {
    let manifest = repo::read(&root.join("Cargo.toml"))?;
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap_or_default();
    let version = repo::output_of(root, "rustc", &["--version"])?;
    Ok(is_release(&version, oldest.trim_matches('"')))
}

/// Whether `rustc 1.95.0 (…)` is a release of `1.95`.
fn is_release(version: &str, oldest: &str) -> bool {
    let number = version.split(' ').nth(1).unwrap_or_default();
    !oldest.is_empty() && (number == oldest || number.starts_with(&format!("{oldest}.")))
}

fn tests(root: &Path, extent: Extent) -> Result<()> {
    let nextest = repo::cargo_command().args(["nextest", "--version"]).output();
    let ignored = extent == Extent::Long;
    if nextest.is_ok_and(|output| output.status.success()) {
        let mut arguments = vec!["nextest", "run", "--locked", "--workspace"];
        if ignored {
            arguments.extend(["--run-ignored", "all"]);
        }
        return cargo(root, &arguments);
    }
    eprintln!("xtask: there is no cargo-nextest: the tests run under `cargo test`, one at a time, without time limits");
    let mut arguments = vec!["test", "--locked", "--workspace", "--all-targets", "--", "--test-threads", "1"];
    if ignored {
        arguments.push("--include-ignored");
    }
    cargo(root, &arguments)
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = repo::cargo_command()
        .args(arguments)
        .current_dir(root)
        .status()
        .with_context(|| format!("start cargo {arguments:?}"))?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// What ran, how long it took, and what failed.
#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, Duration, bool)>,
    failed: Vec<&'static str>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        eprintln!("--> {name}");
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        if let Err(error) = &result {
            eprintln!("    {name} failed after {:.1} s: {error:#}", took.as_secs_f64());
            self.failed.push(name);
        }
        self.done.push((name, took, result.is_ok()));
    }

    fn finish(self) -> Result<()> {
        eprintln!();
        for (name, took, held) in &self.done {
            eprintln!("{:>8.1} s  {}  {name}", took.as_secs_f64(), if *held { "ok    " } else { "FAILED" });
        }
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_compiler_is_known_by_its_whole_number() {
        assert!(is_release("rustc 1.95.0 (59807616e 2026-04-14)", "1.95"));
        assert!(!is_release("rustc 1.950.0 (59807616e 2026-04-14)", "1.95"));
        assert!(!is_release("rustc 1.99.1 (58cf8f9c3 2026-10-13)", "1.95"));
        assert!(!is_release("", "1.95") && !is_release("rustc 1.95.0", ""));
    }

    #[test]
    fn one_failed_step_fails_the_run_and_lets_the_others_run() {
        let mut steps = Steps::default();
        let mut ran = 0;
        steps.run("first", || bail!("does not hold"));
        steps.run("second", || {
            ran += 1;
            Ok(())
        });
        assert_eq!(ran, 1);
        let error = steps.finish().unwrap_err().to_string();
        assert!(error.contains("first") && !error.contains("second"), "{error}");
    }
}
