//! The five algorithms side by side: writes the picture `docs/algorithms.svg`, and prints the figures of
//! `docs/algorithms.md`. Every run makes the same ones.
//!
//! ```text
//! cargo run --example algorithms
//! ```

mod arrivals;
mod five;
mod judged;
mod picture;
use tollgate::algorithm::Window;

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/algorithms.svg");
    fs::write(path, picture::draw())?;
    print!("{}", judged::tables(Window::of_seconds(60).unwrap()));
    Ok(())
}
