//! Compares the five algorithms: writes the picture `docs/reference/algorithms.svg`, and prints the figures of
//! `docs/dev/figures.md`, which are the same in every run.
//!
//! ```text
//! cargo run --example algorithms
//! ```

mod arrivals;
mod errors;
mod five;
mod picture;

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/algorithms.svg");
    fs::write(path, picture::draw())?;
    print!("{}", errors::tables());
    Ok(())
}
