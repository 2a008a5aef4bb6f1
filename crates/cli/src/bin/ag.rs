//! The program `ag`.

use std::process::ExitCode;

use ag_cli::args::Cli;
use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(cli.threads()).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(cli.run()),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ag_cli::complain(&error);
            ExitCode::from(ag_cli::exit::code_of(&error))
        }
    }
}
