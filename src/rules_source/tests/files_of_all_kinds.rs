//! What is read of a directory, and what is said of what is not.

use std::{os::unix::net::UnixListener, process::Command};

use super::*;
use crate::{
    rules::{Diagnostic, Severity},
    rules_source::{
        Reading,
        files::{read_at_rest, read_files},
        listing::Listing,
        read_dir,
    },
};

/// The names of the files that were read, below `config`.
fn names(place: &Place, reading: &Reading) -> Vec<String> {
    let config = place.path("config").display().to_string() + "/";
    reading.files.iter().map(|file| file.name.strip_prefix(&config).unwrap().to_owned()).collect()
}

fn read(place: &Place) -> Reading {
    read_dir(&place.path("config"), false)
}

/// The only diagnostic there is.
fn only(reading: &Reading) -> &Diagnostic {
    let [diagnostic] = &*reading.diagnostics else {
        panic!("one diagnostic, not {:#?}", reading.diagnostics)
    };
    assert!(diagnostic.help.is_some(), "no word on what to do: {diagnostic:#?}");
    diagnostic
}

#[test]
fn every_file_counts_whatever_its_name_in_the_order_of_the_go_service() {
    let place = Place::new();
    for name in ["b.yml", "a.yaml", "a", "a-b.txt", "a/z", "a/b/c", ".hidden", "..also.yaml", ".dir/x"] {
        // One name is a file and a directory here; the directory goes by another.
        place.write(&format!("config/{}", name.replace("a/", "a.d/")), name);
    }
    let reading = read(&place);
    assert_eq!(reading.diagnostics, []);
    // A dot stands for the slash: `a.d.b.c` before `a.d.z`, and `a-b.txt` before both.
    let expected =
        ["..also.yaml", ".dir/x", ".hidden", "a", "a-b.txt", "a.d/b/c", "a.d/z", "a.yaml", "b.yml"];
    assert_eq!(names(&place, &reading), expected);
    assert_eq!(reading.files[3].text, b"a");

    let reading = read_dir(&place.path("config"), true);
    assert_eq!(names(&place, &reading), expected[3..]);
}

#[test]
fn a_slash_sorts_as_the_dot_that_stands_for_it() {
    let place = Place::new();
    for name in ["a/b.yaml", "a-c.yaml", "a.a.yaml", "a.c.yaml"] {
        place.write(&format!("config/{name}"), "");
    }
    assert_eq!(names(&place, &read(&place)), ["a-c.yaml", "a.a.yaml", "a/b.yaml", "a.c.yaml"]);
}

#[test]
fn what_a_volume_adds_for_itself_is_not_read_twice() {
    let place = Place::new();
    place.write("config/..2026_01_02_03.1/a.yaml", "a");
    place.write("config/..2026_01_02_03.1/team/b.yaml", "b");
    place.write("config/lost+found/c.yaml", "c");
    place.link("config/..data", "..2026_01_02_03.1");
    place.link("config/a.yaml", "..data/a.yaml");
    place.link("config/team", "..data/team");
    for ignore_dot_files in [false, true] {
        let reading = read_dir(&place.path("config"), ignore_dot_files);
        assert_eq!(reading.diagnostics, [], "{ignore_dot_files}");
        assert_eq!(names(&place, &reading), ["a.yaml", "team/b.yaml"], "{ignore_dot_files}");
    }
}

#[test]
fn symlinks_to_directories_are_passed_over_as_the_go_service_does() {
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
fn symlinks_that_lead_nowhere_log_a_warning() {
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
fn pipes_and_sockets_log_a_warning_and_are_never_waited_for() {
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

/// The text of a version. Each is longer than the one before, since two writes may bear the same time.
fn text_of(version: u32) -> String {
    "v".repeat(version as usize + 1)
}

/// Reads a `config` whose files go from one version to the next while they are read, so often. Gives the
/// texts that were taken, and how often the files were read.
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
    let reading = read_at_rest(
        || Listing::of(&config, false),
        |listing| {
            let mut reading = read_files(&config, listing);
            reads += 1;
            if reads <= changes {
                write_version(reads);
                // The second file is met as it is after the change, the first as it was before.
                reading.files[1] = read_files(&config, listing).files.remove(1);
            }
            reading
        },
    );
    let texts = reading.files.into_iter().map(|file| String::from_utf8(file.text).unwrap());
    (texts.collect(), reads)
}

#[test]
fn files_that_change_while_they_are_read_are_read_again_but_not_for_ever() {
    assert_eq!(read_amid_changes(0), (vec![text_of(0); 2], 1));
    assert_eq!(read_amid_changes(1), (vec![text_of(1); 2], 2));
    assert_eq!(read_amid_changes(2), (vec![text_of(2); 2], 3));
    assert_eq!(read_amid_changes(9).1, 3);
}

#[test]
fn an_empty_directory_is_no_error() {
    let place = Place::new();
    std::fs::create_dir(place.path("config")).unwrap();
    assert_eq!(read(&place), Reading::default());
}

#[test]
fn reports_a_missing_directory_by_the_name_that_is_missing() {
    let place = Place::new();
    let reading = read_dir(&place.path("current/config"), false);
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
fn reports_a_loop_in_place_of_the_directory() {
    let place = Place::new();
    place.link("config", "config");
    let reading = read(&place);
    assert!(reading.has_errors());
    assert!(only(&reading).message.contains("cannot be listed"), "{reading:#?}");
}

#[test]
#[cfg(target_os = "linux")]
fn reports_all_unreadable_files_and_reads_the_others() {
    let place = Place::new();
    place.write("config/a.yaml", "a");
    place.write("config/large.yaml", "");
    let large = std::fs::File::options().write(true).open(place.path("config/large.yaml")).unwrap();
    large.set_len(40 << 20).unwrap();
    // A file that its owner may open, and nobody can read, not even root: address 0 is never mapped.
    place.link("config/unreadable.yaml", "/proc/self/mem");
    let reading = read(&place);
    assert_eq!(names(&place, &reading), ["a.yaml"]);
    assert!(reading.diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Error));
    let [large, unreadable] = &*reading.diagnostics else { panic!("two diagnostics, not {reading:#?}") };
    assert!(large.message.contains("larger than the limit of 16777216 bytes"), "{large:#?}");
    assert!(unreadable.message.contains("cannot be read"), "{unreadable:#?}");
}

#[test]
fn a_directory_of_too_many_files_is_refused_and_not_read_in_part() {
    let place = Place::new();
    for name in ["a", "b", "c/d"] {
        place.write(&format!("config/{name}"), "");
    }
    let config = place.path("config");
    assert_eq!(Listing::bounded(&config, false, 4).files.len(), 3);
    let listing = Listing::bounded(&config, false, 3);
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
        let directory = RulesDir {
            root: root.into(),
            subdirectory: subdirectory.to_owned(),
            app_directory: app_directory.to_owned(),
            ignore_dot_files: false,
        };
        assert_eq!(directory.path(), Path::new(expected), "{directory:?}");
    }
}

#[test]
fn the_hash_is_of_names_and_texts_wherever_the_directory_is() {
    let hash_of = |files: &[(&str, &str)]| {
        let place = Place::new();
        for (name, text) in files {
            place.write(&format!("config/{name}"), text);
        }
        read(&place).hash(&place.path("config"))
    };
    let files = [("a", "one"), ("b", "two")];
    assert_eq!(hash_of(&files), hash_of(&files));
    for other in [[("a", "one"), ("c", "two")], [("a", "one"), ("b", "twO")], [("a", "on"), ("b", "etwo")]] {
        assert_ne!(hash_of(&files), hash_of(&other), "{other:?}");
    }
}
