//! The repository's own automation: `cargo xtask <command>`.

use std::process::ExitCode;

use anyhow::{Result, bail};

mod breaking;
mod ci;
mod codegen;
mod dependencies;
mod layers;
mod links;
mod proto_lint;
mod repo;
mod tidy;

const USAGE: &str = "usage: cargo xtask <command>

  ci [--quick | --long]  everything that must hold, changing nothing; --quick leaves the tests out,
                         --long adds those that are ignored because they take minutes
  fix                    format all code, and generate code anew
  layers                 the layer table of docs/ARCHITECTURE.md against the manifests
  tidy                   what neither rustfmt nor clippy looks at
  dependencies           sources and licences of all dependencies
  codegen [--check]      the Rust code of the protos
  proto                  naming and comments in the protos, and no break of a released contract
  freeze RELEASE         keep today's protos as the contract of a release";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    let root = repo::root();
    match words {
        ["ci"] => ci::run(&root, ci::Extent::Usual),
        ["ci", "--quick"] => ci::run(&root, ci::Extent::Quick),
        ["ci", "--long"] => ci::run(&root, ci::Extent::Long),
        ["fix"] => ci::fix(&root),
        ["layers"] => repo::report(layers::check(&root)?),
        ["tidy"] => repo::report(tidy::check(&root)?),
        ["dependencies"] => repo::report(dependencies::check(&root)?),
        ["codegen"] => codegen::write(&root),
        ["codegen", "--check"] => repo::report(codegen::check(&root)?),
        ["proto"] => {
            let mut problems = proto_lint::check(&root)?;
            problems.extend(breaking::check(&root)?);
            repo::report(problems)
        }
        ["freeze", release] => breaking::freeze(&root, release),
        _ => bail!("{USAGE}"),
    }
}
