//! libFuzzer's entry point: runs the target in the variable `TARGET` on libFuzzer's inputs.
#![no_main]

use std::{env, process, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tollgate::fuzz::{TARGETS, Target, target};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = env::var("TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("TARGET={name:?}: expected one of {}", known.join(", "));
        process::exit(2)
    })
});

fuzz_target!(|input: &[u8]| (CHOSEN.run)(input));
