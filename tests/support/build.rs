//! Where cargo puts the tested program: beside the directory of what it builds from scripts.

use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    // target/PROFILE/build/support-HASH/out
    let built = Path::new(&out).ancestors().nth(3).ok_or("OUT_DIR is not below a profile's directory")?;
    println!("cargo::rustc-env=TOLLGATE_BINARY={}", built.join("tollgate").display());
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
