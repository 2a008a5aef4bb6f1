//! The program `ag-worker`.

use std::process::ExitCode;

use ag_cli::worker_args::WorkerCli;
use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = WorkerCli::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(ag_cli::threads(None)).enable_all().build();
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
