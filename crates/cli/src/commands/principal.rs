//! `ag principal new`: an entry for the principals file.

use ag_auth::{BearerToken, Role};
use ag_core::name::PrincipalName;
use anyhow::Result;
use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::output;

/// Principals.
#[derive(Subcommand, Clone, Debug)]
pub enum Principal {
    /// Make a bearer token, and the entry that knows it by its hash. The token goes to stdout, this once; the entry is
    /// added to the principals file.
    New(New),
}

/// See [`Principal::New`].
#[derive(Args, Clone, Debug)]
pub struct New {
    /// The principal's name.
    name: String,
    /// A role, worker, producer or admin; may be given several times.
    #[arg(long = "role", required = true)]
    roles: Vec<String>,
    /// The principals file; made if it does not exist.
    #[arg(long, value_name = "FILE")]
    principals: std::path::PathBuf,
}

impl Principal {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let Self::New(new) = self;
        let name = PrincipalName::parse("name", &new.name).map_err(|error| Exit::usage(error.to_string()))?;
        for role in &new.roles {
            if Role::parse(role).is_none() {
                return Err(Exit::usage(format!("role: must be worker, producer or admin, is {role:?}")));
            }
        }
        let bearer_token = BearerToken::generate();
        let roles: Vec<_> = new.roles.iter().map(|role| format!("{role:?}")).collect();
        let entry = format!(
            "[[principal]]\nname = \"{name}\"\nroles = [{}]\nbearer_sha256 = \"{}\"\n",
            roles.join(", "),
            bearer_token.hash()
        );
        add(&new.principals, &entry)?;
        output::line(bearer_token.expose())
    }
}

/// Adds an entry, if the file is good with it.
fn add(path: &std::path::Path, entry: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Exit::usage(format!("cannot read {}: {error}", path.display()))),
    };
    let gap = if before.is_empty() { "" } else { "\n" };
    let after = format!("{before}{gap}{entry}");
    ag_auth::Principals::parse(&after).map_err(|error| Exit::usage(format!("{:#}", anyhow::Error::from(error))))?;
    let new = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(after.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    Ok(())
}
