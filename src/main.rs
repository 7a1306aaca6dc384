//! The `tollgate` program: passes the arguments and the environment to the command line.

use std::{env, ffi::OsString, process::ExitCode, thread};

use cli::Environment;
use settings::Available;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    allocator::allow_huge_pages(false);
    let text = |os: OsString| os.to_string_lossy().into_owned();
    // Nothing else reads the environment.
    let environment = Environment {
        variables: env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
        memory: allocator::available()
            .map_or_else(Available::default, |(bytes, is_limit)| Available { bytes, is_limit }),
        cores: thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    cli::run(env::args_os(), &environment, tollgate::app::serve)
}
