//! The `tollgate` program: parses the arguments, runs the command, returns its exit code.

use std::{env, process::ExitCode, thread};

use tollgate::cli::{self, Command, Environment};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::memory::allow_huge_pages(false);
    let verdict = match cli::parse(env::args_os()) {
        Command::Serve { ignored } => cli::serve::run(&environment(), &ignored),
        Command::Check(args) => cli::check::run(&args, &environment()),
        Command::Explain(args) => cli::explain::run(&args, &environment()),
        Command::Request(args) => cli::request::run(&args, &environment()),
        Command::Health(args) => cli::health::run(&args, &environment()),
        Command::Status(args) => cli::admin::status::run(&args, &environment()),
        Command::Top(args) => cli::admin::top::run(&args, &environment()),
        Command::Refusals(args) => cli::admin::refusals::run(&args, &environment()),
        Command::Counter(args) => cli::admin::counter::run(&args, &environment()),
        Command::Override(args) => cli::admin::overrides::run(&args, &environment()),
        Command::Settings(args) => cli::settings::run(&args, &environment()),
        Command::Completions { shell } => cli::print_completions(shell),
        Command::Man { dir } => cli::print_man_pages(dir.as_deref()),
    };
    verdict.into()
}

/// The environment of the process; nothing else reads it.
fn environment() -> Environment {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    Environment {
        variables: env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
    }
}
