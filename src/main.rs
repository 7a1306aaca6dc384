//! The `tollgate` command: parse, one match, exit code.

use std::{env, process::ExitCode, thread};

use tollgate::cli::{self, Command, serve::Environment};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::memory::allow_huge_pages(false);
    match cli::parse(env::args_os()) {
        Command::Serve { ignored } => cli::serve::run(&environment(), &ignored),
        Command::Check(args) => cli::check::run(&args, &environment()),
        Command::Explain(args) => cli::explain::run(&args, &environment()),
        Command::Request(args) => cli::request::run(&args),
        Command::Settings => print(&tollgate::settings::markdown()),
        Command::Completions(shell) => print(&cli::completions(shell)),
    }
}

fn print(text: &str) -> ExitCode {
    cli::print(text);
    ExitCode::SUCCESS
}

/// What the process was started with: the one place where it is read.
fn environment() -> Environment {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    Environment {
        variables: env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
    }
}
