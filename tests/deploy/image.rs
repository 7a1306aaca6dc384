//! The image of `deploy/Dockerfile`, without a container engine: its copied files, commands and content.
//!
//! Compiling would take minutes, so that step copies the program under test instead, and the compiler's list of sources
//! is compared with the copied files. The release workflow builds the complete image.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use support::server::BINARY;

use super::{output, read};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const DOCKERFILE: &str = "deploy/Dockerfile";
/// Words of the steps that compile.
const COMPILES: &str = "cargo build --locked --profile dist";

#[test]
fn every_compiled_file_is_copied_and_not_ignored() {
    let copied = copied();
    let sources = sources();
    assert!(
        sources.contains("src/lib.rs")
            && sources.contains("crates/ground/clock/src/lib.rs")
            && sources.contains("proto"),
        "{sources:?}"
    );
    for source in sources {
        let is_copied = copied.iter().any(|copied| Path::new(&source).starts_with(copied));
        assert!(is_copied, "{source} is not copied");
    }
    let let_through = read("deploy/Dockerfile.dockerignore");
    for path in &copied {
        assert!(let_through.lines().any(|line| line.strip_prefix('!') == Some(path)), "{path} is ignored");
    }
}

/// The files that the compiler read, and those that the build script declares.
fn sources() -> BTreeSet<String> {
    let mut sources = BTreeSet::new();
    let executable = env::current_exe().unwrap();
    let compiled = executable.parent().unwrap();
    for path in entries(compiled).filter(|path| path.extension().is_some_and(|own| own == "d")) {
        let listed = fs::read_to_string(path).unwrap();
        let of_library = listed.lines().filter(|line| line.contains(".rlib: "));
        sources.extend(of_library.flat_map(|line| line.split(' ').skip(1)).map(str::to_owned));
    }
    for path in entries(&compiled.with_file_name("build")) {
        let said = fs::read_to_string(path.join("output")).unwrap_or_default();
        let read = said.lines().filter_map(|line| line.split_once("rerun-if-changed="));
        // A crate's build script names files from the crate's directory.
        sources.extend(read.map(|(_, path)| path.trim_start_matches("../").to_owned()));
    }
    // Dependencies and generated files have absolute paths. An image gets its commit by an argument.
    sources.retain(|path| Path::new(ROOT).join(path).exists() && !path.starts_with(['/', '.']));
    sources
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn cargo_accepts_the_manifest_among_the_copied_files() {
    let dir = tempfile::tempdir().unwrap();
    copy_into(dir.path());
    // This command reads a manifest as compiling does.
    let version = output(Command::new("rustc").arg("-vV"));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut fetch = Command::new("cargo");
    fetch.args(["fetch", "--locked", "--offline", "--target", host, "--manifest-path"]);
    output(fetch.arg(dir.path().join("Cargo.toml")));
}

/// The root of the image: the libraries of its base, and the copied files.
pub(super) fn image() -> TempDir {
    let dir = tempfile::Builder::new().prefix("tollgate-image-").tempdir().unwrap();
    let (build, out, image) = (dir.path().join("build"), dir.path().join("out"), dir.path().join("root"));
    fs::create_dir_all(build.join("target/dist")).unwrap();
    fs::copy(BINARY, build.join("target/dist/tollgate")).unwrap();
    for step in instructions("RUN") {
        if !step.contains(COMPILES) {
            let step = step.replace("/image/", &format!("{}/", out.display()));
            output(Command::new("sh").args([
                "-ec",
                "cd \"$0\"; eval \"$1\"",
                build.to_str().unwrap(),
                &step,
            ]));
        }
    }
    fs::create_dir_all(image.join("bin")).unwrap();
    output(Command::new("cp").args(["-a", "-T"]).arg(&out).arg(image.join("bin")));
    for library in output(Command::new("ldd").arg(BINARY)).split_whitespace() {
        if let Some(below) = library.strip_prefix('/') {
            let place = image.join(below);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(library, place).unwrap();
        }
    }
    dir
}

#[test]
fn the_image_has_labels_and_a_health_check_that_the_program_understands() {
    let file = read(DOCKERFILE);
    for label in ["title", "description", "licenses", "version", "revision", "source"] {
        assert!(file.contains(&format!("org.opencontainers.image.{label}=")), "{label}");
    }
    let health_check = instructions("HEALTHCHECK").concat();
    let (_, command) = health_check.split_once("CMD ").unwrap();
    let command: Vec<String> = serde_json::from_str(command).unwrap();
    assert_eq!(command, ["/bin/tollgate", "health"]);
    output(Command::new(BINARY).args(["help", &command[1]]));
}

/// The program and the arguments that a container starts with.
pub(super) fn entry_point() -> Vec<String> {
    serde_json::from_str(&instructions("ENTRYPOINT").concat()).unwrap()
}

/// The user and group that it runs as.
pub(super) fn user() -> String {
    instructions("USER").concat()
}

/// The arguments of each instruction of a name.
fn instructions(name: &str) -> Vec<String> {
    let file = read(DOCKERFILE);
    let found = file.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map(str::to_owned).collect()
}

/// The paths that are copied from the project.
fn copied() -> Vec<String> {
    let own = instructions("COPY").into_iter().filter(|line| !line.starts_with("--from"));
    own.flat_map(|line| {
        let mut words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        words.pop();
        words
    })
    .collect()
}

fn copy_into(directory: &Path) {
    for path in copied() {
        let place = directory.join(&path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        output(Command::new("cp").arg("-rT").arg(&path).arg(place));
    }
}
