//! Where cargo puts the tested program: beside the directory of what it builds from scripts.

use std::{env, path::Path};

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    // target/PROFILE/build/support-HASH/out
    let built = Path::new(&out).ancestors().nth(3).expect("a directory of the profile");
    println!("cargo::rustc-env=TOLLGATE_BINARY={}", built.join("tollgate").display());
    println!("cargo::rerun-if-changed=build.rs");
}
