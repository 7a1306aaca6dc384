//! Which files of a directory are read, and the diagnostics about the others.

use std::{os::unix::net::UnixListener, process::Command};

use super::*;
use crate::{
    Reading,
    files::{read_consistently, read_files},
    listing::{Listing, MAX_ENTRIES},
};
use text::diagnostics::{Diagnostic, Severity};

/// The names of the files that were read, below `config`.
fn names(place: &Place, reading: &Reading) -> Vec<String> {
    let config = place.path("config").display().to_string() + "/";
    reading.files.iter().map(|file| file.name.strip_prefix(&config).unwrap().to_owned()).collect()
}

fn read_dir(place: &Place, below: &str, ignore_dot_files: bool) -> Reading {
    RulesDir { path: place.path(below), ignore_dot_files, max_bytes: 16 << 20 }.read()
}

fn read(place: &Place) -> Reading {
    read_dir(place, "config", false)
}

/// The only diagnostic there is.
fn only(reading: &Reading) -> &Diagnostic {
    let [diagnostic] = &*reading.diagnostics else {
        panic!("one diagnostic, not {:#?}", reading.diagnostics)
    };
    assert!(diagnostic.help.is_some(), "no help: {diagnostic:#?}");
    diagnostic
}

#[test]
fn reads_every_file_in_the_order_of_the_go_service() {
    let place = Place::new();
    for name in ["b.yml", "a.yaml", "a", "a-b.txt", "a/z", "a/b/c", ".hidden", "..also.yaml", ".dir/x"] {
        // `a` is a file here, so the directory has another name.
        place.write(&format!("config/{}", name.replace("a/", "a.d/")), name);
    }
    let reading = read(&place);
    assert_eq!(reading.diagnostics, []);
    // A dot stands for the slash: `a.d.b.c` before `a.d.z`, and `a-b.txt` before both.
    let expected =
        ["..also.yaml", ".dir/x", ".hidden", "a", "a-b.txt", "a.d/b/c", "a.d/z", "a.yaml", "b.yml"];
    assert_eq!(names(&place, &reading), expected);
    assert_eq!(reading.files[3].text, b"a");

    let reading = read_dir(&place, "config", true);
    assert_eq!(names(&place, &reading), expected[3..]);
}

#[test]
fn a_slash_sorts_as_a_dot() {
    let place = Place::new();
    for name in ["a/b.yaml", "a-c.yaml", "a.a.yaml", "a.c.yaml"] {
        place.write(&format!("config/{name}"), "");
    }
    assert_eq!(names(&place, &read(&place)), ["a-c.yaml", "a.a.yaml", "a/b.yaml", "a.c.yaml"]);
}

#[test]
fn internal_entries_of_a_volume_are_skipped() {
    let place = Place::new();
    place.write("config/..2026_01_02_03.1/a.yaml", "a");
    place.write("config/..2026_01_02_03.1/team/b.yaml", "b");
    place.write("config/lost+found/c.yaml", "c");
    place.link("config/..data", "..2026_01_02_03.1");
    place.link("config/a.yaml", "..data/a.yaml");
    place.link("config/team", "..data/team");
    for ignore_dot_files in [false, true] {
        let reading = read_dir(&place, "config", ignore_dot_files);
        assert_eq!(reading.diagnostics, [], "{ignore_dot_files}");
        assert_eq!(names(&place, &reading), ["a.yaml", "team/b.yaml"], "{ignore_dot_files}");
    }
}

#[test]
fn symlinks_to_directories_are_skipped_as_the_go_service_does() {
    let place = Place::new();
    place.write("config/prod/a.yaml", "a");
    place.link("config/current", "prod");
    place.link("config/round", "..");
    let reading = read(&place);
    assert_eq!(names(&place, &reading), ["prod/a.yaml"]);
    assert!(!reading.has_errors());
    assert_eq!(reading.diagnostics.len(), 2, "{:#?}", reading.diagnostics);
}

#[test]
fn broken_symlinks_are_warnings() {
    let place = Place::new();
    place.link("config/lock", "gone");
    place.link("config/loop", "loop");
    place.write("config/a.yaml", "a");
    let reading = read(&place);
    assert_eq!(names(&place, &reading), ["a.yaml"]);
    assert!(reading.diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Warning));
    assert!(reading.diagnostics[0].message.contains("`gone` is broken: "), "{:#?}", reading.diagnostics);
    assert!(reading.diagnostics[1].message.contains("`loop` is broken: "), "{:#?}", reading.diagnostics);
}

#[test]
fn pipes_and_sockets_are_warnings_and_do_not_block() {
    let place = Place::new();
    place.write("config/a.yaml", "a");
    assert!(Command::new("mkfifo").arg(place.path("config/pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(place.path("config/socket")).unwrap();
    let reading = read(&place);
    assert_eq!(names(&place, &reading), ["a.yaml"]);
    assert!(!reading.has_errors());
    assert!(reading.diagnostics[0].message.contains("a named pipe"), "{:#?}", reading.diagnostics);
    assert!(reading.diagnostics[1].message.contains("a socket"), "{:#?}", reading.diagnostics);
}

/// The text of a version. Each is longer than the previous one, since two writes may have the same time.
fn text_of(version: u32) -> String {
    "v".repeat(version as usize + 1)
}

/// Reads a `config` whose files change this many times while they are read. Returns the texts of the result, and how
/// often the files were read.
fn read_amid_changes(changes: u32) -> (Vec<String>, u32) {
    let place = Place::new();
    let config = place.path("config");
    let write_version = |version: u32| {
        for name in ["a", "b"] {
            place.write(&format!("config/{name}"), text_of(version));
        }
    };
    write_version(0);
    let mut reads = 0;
    let reading = read_consistently(
        || Listing::of(&config, false, MAX_ENTRIES),
        |listing| {
            let mut reading = read_files(listing, u64::MAX);
            reads += 1;
            if reads <= changes {
                write_version(reads);
                // The first file is read before the change, the second after it.
                reading.files[1] = read_files(listing, u64::MAX).files.remove(1);
            }
            reading
        },
    );
    let texts = reading.files.into_iter().map(|file| String::from_utf8(file.text).unwrap());
    (texts.collect(), reads)
}

#[test]
fn files_that_change_during_a_read_are_read_again_but_not_forever() {
    assert_eq!(read_amid_changes(0), (vec![text_of(0); 2], 1));
    assert_eq!(read_amid_changes(1), (vec![text_of(1); 2], 2));
    assert_eq!(read_amid_changes(2), (vec![text_of(2); 2], 3));
    assert_eq!(read_amid_changes(9).1, 3);
}

#[test]
fn accepts_an_empty_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("config")).unwrap();
    assert_eq!(read(&place), Reading::default());
}

#[test]
fn reports_a_missing_directory_by_the_name_that_is_missing() {
    let place = Place::new();
    let reading = read_dir(&place, "current/config", false);
    let diagnostic = only(&reading);
    assert_eq!(diagnostic.severity, Severity::Error);
    let seen = format!("`{}` has no `current`", place.root.display());
    assert!(diagnostic.message.contains(&seen), "{diagnostic:#?}");
}

#[test]
fn reports_a_file_in_place_of_the_directory() {
    let place = Place::new();
    place.write("config", "domain: d");
    let reading = read(&place);
    assert!(reading.has_errors());
    assert!(only(&reading).message.contains("not a directory"), "{reading:#?}");
}

#[test]
fn reports_a_file_on_the_path_to_the_directory() {
    let place = Place::new();
    place.write("current", "domain: d");
    let reading = read_dir(&place, "current/config", false);
    let diagnostic = only(&reading);
    let seen = format!("`{}` is not a directory", place.path("current").display());
    assert!(diagnostic.message.contains(&seen), "{diagnostic:#?}");
    assert!(!diagnostic.help.as_ref().is_some_and(|help| help.contains("chmod")), "{diagnostic:#?}");
}

#[test]
fn reports_a_loop_in_place_of_the_directory() {
    let place = Place::new();
    place.link("config", "config");
    let reading = read(&place);
    assert!(reading.has_errors());
    assert!(only(&reading).message.contains("cannot list the directory"), "{reading:#?}");
}

#[test]
#[cfg(target_os = "linux")]
fn reports_all_unreadable_files_and_reads_the_others() {
    let place = Place::new();
    place.write("config/a.yaml", "a");
    place.write("config/large.yaml", "");
    let large = std::fs::File::options().write(true).open(place.path("config/large.yaml")).unwrap();
    large.set_len(40 << 20).unwrap();
    // A file that its owner can open, and not even root can read: address 0 is never mapped.
    place.link("config/unreadable.yaml", "/proc/self/mem");
    let reading = read(&place);
    assert_eq!(names(&place, &reading), ["a.yaml"]);
    assert!(reading.diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Error));
    let [large, unreadable] = &*reading.diagnostics else { panic!("two diagnostics, not {reading:#?}") };
    assert!(
        large.message.contains("the files up to this one exceed the limit of 16777216 bytes"),
        "{large:#?}"
    );
    assert!(unreadable.message.contains("cannot read the file"), "{unreadable:#?}");
}

#[test]
fn rejects_a_named_file_above_its_size_limit_and_accepts_one_at_it() {
    let place = Place::new();
    place.write("a.yaml", "0123456789");
    let read = |max_bytes| Reading::of_file(&place.path("a.yaml"), max_bytes, "split it");
    assert_eq!(read(10).files[0].text, b"0123456789");
    let reading = read(9);
    let seen = only(&reading);
    assert_eq!(
        (&*seen.message, seen.help.as_deref()),
        ("the file exceeds the limit of 9 bytes", Some("split it"))
    );
}

#[test]
fn rejects_a_directory_with_too_many_files() {
    let place = Place::new();
    for name in ["a", "b", "c/d"] {
        place.write(&format!("config/{name}"), "");
    }
    let config = place.path("config");
    assert_eq!(Listing::of(&config, false, 4).files.len(), 3);
    let listing = Listing::of(&config, false, 3);
    assert_eq!(listing.files, []);
    assert!(listing.diagnostics[0].message.contains("more than 3 files"), "{:#?}", listing.diagnostics);
}

#[test]
fn the_parts_of_the_path_are_joined_as_the_go_service_joins_them() {
    for (root, subdirectory, app_directory, expected) in [
        ("/srv/runtime_data/current", "", "config", "/srv/runtime_data/current/config"),
        ("/data", "ratelimit", "config", "/data/ratelimit/config"),
        ("/data/", "/ratelimit/", "/config/", "/data/ratelimit/config"),
        ("/data/./x", "../y", "", "/data/y"),
        ("/", "../..", "a", "/a"),
        ("examples", "", "", "examples"),
        ("..", "..", "x", "../../x"),
        ("", "", "", "."),
        ("a", "..", "", "."),
    ] {
        let directory = RulesDir::new(Path::new(root), subdirectory, app_directory, false);
        assert_eq!(directory.path, Path::new(expected), "{root} {subdirectory} {app_directory}");
    }
}

#[test]
fn the_hash_covers_names_and_texts() {
    let place = Place::new();
    let hash_of = |files: [(&str, &str); 2]| {
        let _ = fs::remove_dir_all(place.path("config"));
        for (name, text) in files {
            place.write(&format!("config/{name}"), text);
        }
        read(&place).hash()
    };
    let files = [("a", "one"), ("b", "two")];
    let hash = hash_of(files);
    assert_eq!(hash, hash_of(files));
    for other in [[("a", "one"), ("c", "two")], [("a", "one"), ("b", "twO")], [("a", "on"), ("b", "etwo")]] {
        assert_ne!(hash, hash_of(other), "{other:?}");
    }
}
