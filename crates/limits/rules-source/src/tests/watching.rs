//! Every kind of change is detected: those in the rules directory by events, all others by listings.

use std::{
    collections::BTreeSet,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use super::*;

/// A watched `config` that holds `a.yaml` with the domain `a`.
fn watched() -> (Place, Watched) {
    watched_at(BY_EVENTS)
}

fn watched_at(pace: Debounce) -> (Place, Watched) {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let watched = Watched::start(place.source(""), pace);
    watched.wait_for(&["a"]);
    (place, watched)
}

#[test]
fn detects_written_created_removed_and_renamed_files() {
    let (place, watched) = watched();
    place.write("config/a.yaml", rules_of("b"));
    watched.wait_for(&["b"]);
    place.write("config/c.yaml", rules_of("c"));
    watched.wait_for(&["b", "c"]);
    fs::remove_file(place.path("config/a.yaml")).unwrap();
    watched.wait_for(&["c"]);
    place.write("new.yaml", rules_of("d"));
    fs::rename(place.path("new.yaml"), place.path("config/c.yaml")).unwrap();
    watched.wait_for(&["d"]);
    fs::rename(place.path("config/c.yaml"), place.path("config.yaml")).unwrap();
    watched.wait_for(&[]);
}

#[test]
fn watches_new_subdirectories() {
    let (place, watched) = watched();
    place.write("config/team/b/b.yaml", rules_of("b"));
    watched.wait_for(&["a", "b"]);
    place.write("config/team/b/b.yaml", rules_of("c"));
    watched.wait_for(&["a", "c"]);
    fs::rename(place.path("config/team"), place.path("team")).unwrap();
    watched.wait_for(&["a"]);
}

#[test]
fn detects_granted_and_revoked_read_permission() {
    let (place, watched) = watched();
    let chmod = |mode| fs::set_permissions(place.path("config/a.yaml"), Permissions::from_mode(mode));
    chmod(0o000).unwrap();
    if fs::read(place.path("config/a.yaml")).is_ok() {
        // Root can read it anyway.
        return;
    }
    watched.wait_until("the rejection", |source| source.state().errors == 1);
    chmod(0o644).unwrap();
    watched.wait_until("the recovery", |source| source.state().is_current);
}

#[test]
fn detects_a_swapped_symlink_as_runtime_root() {
    let place = Place::new();
    for release in ["1", "2", "3"] {
        place.write(&format!("releases/{release}/config/a.yaml"), rules_of(release));
    }
    place.link("current", "releases/1");
    let watched = Watched::start(place.source("current"), Debounce::default());
    watched.wait_for(&["1"]);
    // As `ln -sfn` and `mv -T` do.
    place.link("next", "releases/2");
    fs::rename(place.path("next"), place.path("current")).unwrap();
    watched.wait_for(&["2"]);
    // By hand, with a moment without a symlink.
    fs::remove_file(place.path("current")).unwrap();
    place.link("current", "releases/3");
    watched.wait_for(&["3"]);
    place.write("releases/3/config/a.yaml", rules_of("4"));
    watched.wait_for(&["4"]);
}

/// Every way of changing rules, with the time from the change to the rules in service.
#[test]
fn every_change_is_served_within_a_second() {
    let place = Place::new();
    for name in ["1", "2"] {
        place.write(&format!("releases/{name}/config/a.yaml"), rules_of(name));
    }
    place.write("shared.yaml", rules_of("s"));
    place.link("current", "releases/1");
    let watched = Watched::start(place.source("current"), Debounce::default());
    let mut slow = Vec::new();
    let mut served = |what: &str, expected: &[&str]| {
        let begun = Instant::now();
        watched.wait_for(expected);
        slow.extend(
            (begun.elapsed() > Duration::from_secs(1)).then(|| format!("{what}: {:?}", begun.elapsed())),
        );
    };
    let config = "releases/2/config";
    place.link("next", "releases/2");
    fs::rename(place.path("next"), place.path("current")).unwrap();
    served("a swapped root", &["2"]);
    place.write(&format!("{config}/a.yaml"), rules_of("3"));
    served("a write", &["3"]);
    place.link(&format!("{config}/b.yaml"), "../../../shared.yaml");
    served("a new symlink", &["3", "s"]);
    place.write("shared.yaml", rules_of("t"));
    served("a write behind a symlink", &["3", "t"]);
    fs::rename(place.path(&format!("{config}/a.yaml")), place.path("a.yaml")).unwrap();
    served("a file that is moved away", &["t"]);
    fs::rename(place.path(config), place.path("away")).unwrap();
    place.write(&format!("{config}/z.yaml"), rules_of("z"));
    served("a directory that is replaced", &["z"]);
    // One of them may be delayed by a busy machine.
    assert!(slow.len() <= 1, "{slow:?}");
}

#[test]
fn detects_a_swapped_symlink_far_above() {
    let place = Place::new();
    for disk in ["disk1", "disk2"] {
        place.write(&format!("{disk}/srv/config/a.yaml"), rules_of(disk));
    }
    place.link("mnt/disk", "../disk1");
    place.link("data", place.path("mnt/disk/srv"));
    let watched = Watched::start(place.source("data"), Debounce::default());
    watched.wait_for(&["disk1"]);
    place.link("mnt/next", "../disk2");
    fs::rename(place.path("mnt/next"), place.path("mnt/disk")).unwrap();
    watched.wait_for(&["disk2"]);
}

#[test]
fn detects_a_write_behind_a_symlink() {
    let place = Place::new();
    place.write("shared/a.yaml", rules_of("a"));
    place.link("config/a.yaml", "../shared/a.yaml");
    let watched = Watched::start(place.source(""), Debounce::default());
    watched.wait_for(&["a"]);
    place.write("shared/a.yaml", rules_of("b"));
    watched.wait_for(&["b"]);
}

/// A volume that is updated as the kubelet updates that of a ConfigMap.
struct Volume<'p> {
    place: &'p Place,
    version: u32,
}

impl Volume<'_> {
    fn update(&mut self, files: &[(&str, String)]) {
        let before = format!("config/..2026_07_01_12_00_00.{}", self.version);
        self.version += 1;
        let name = format!("..2026_07_01_12_00_00.{}", self.version);
        for (file, text) in files {
            self.place.write(&format!("config/{name}/{file}"), text);
        }
        self.place.link("config/..data_tmp", &name);
        fs::rename(self.place.path("config/..data_tmp"), self.place.path("config/..data")).unwrap();
        let top = |file: &str| file.split('/').next().unwrap_or(file).to_owned();
        let wanted: BTreeSet<String> = files.iter().map(|(file, _)| top(file)).collect();
        for name in &wanted {
            if fs::symlink_metadata(self.place.path(&format!("config/{name}"))).is_err() {
                self.place.link(&format!("config/{name}"), format!("..data/{name}"));
            }
        }
        for entry in fs::read_dir(self.place.path("config")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with("..") && !wanted.contains(&name) {
                fs::remove_file(self.place.path(&format!("config/{name}"))).unwrap();
            }
        }
        if self.version > 1 {
            fs::remove_dir_all(self.place.path(&before)).unwrap();
        }
    }
}

#[test]
fn detects_an_update_of_a_config_map() {
    let place = Place::new();
    let mut volume = Volume { place: &place, version: 0 };
    volume.update(&[("a.yaml", rules_of("a"))]);
    let watched = Watched::start(place.source(""), BY_EVENTS);
    watched.wait_for(&["a"]);
    volume.update(&[("a.yaml", rules_of("b"))]);
    watched.wait_for(&["b"]);
    volume.update(&[("a.yaml", rules_of("b")), ("c.yaml", rules_of("c")), ("team/d.yaml", rules_of("d"))]);
    watched.wait_for(&["b", "c", "d"]);
    volume.update(&[("c.yaml", rules_of("e")), ("team/d.yaml", rules_of("f"))]);
    watched.wait_for(&["e", "f"]);
    assert_eq!(watched.source.state().errors, 0, "{:#?}", watched.source.state());
}

#[test]
fn recovers_from_an_invalid_set() {
    let (place, watched) = watched();
    place.write("config/b.yaml", BAD);
    watched.wait_until("the rejection", |source| source.state().errors == 1);
    assert_eq!(domains(&watched.source), ["a"]);
    place.write("config/b.yaml", rules_of("b"));
    watched.wait_for(&["a", "b"]);
    assert!(watched.source.state().is_current);
}

#[test]
fn detects_a_directory_removed_and_created_again() {
    let (place, watched) = watched_at(Debounce::default());
    for round in 1..=3 {
        fs::remove_dir_all(place.path("config")).unwrap();
        watched.wait_until("the rejection", |source| !source.state().is_current);
        let name = format!("round{round}");
        place.write("config/a.yaml", rules_of(&name));
        watched.wait_for(&[&name]);
    }
    fs::rename(place.path("config"), place.path("old")).unwrap();
    watched.wait_until("the rejection", |source| !source.state().is_current);
    fs::rename(place.path("old"), place.path("config")).unwrap();
    watched.wait_until("the recovery", |source| source.state().is_current);
    place.write("config/a.yaml", rules_of("z"));
    watched.wait_for(&["z"]);
}

#[test]
fn waits_for_a_missing_directory() {
    let place = Place::new();
    let watched = Watched::start(place.source("not/yet"), Debounce::default());
    fs::create_dir(place.path("not")).unwrap();
    place.write("not/yet/config/a.yaml", rules_of("a"));
    watched.wait_for(&["a"]);
}

#[test]
fn a_burst_is_one_reload() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let calm =
        Debounce { quiet: Duration::from_millis(700), max_delay: Duration::from_secs(20), ..BY_EVENTS };
    let watched = Watched::start(place.source(""), calm);
    for limit in 0..300 {
        place.write(
            &format!("config/{}.yaml", limit % 30),
            rules_with_limit(&format!("d{}", limit % 30), limit),
        );
    }
    watched.wait_until("all files", |source| domains(source).len() == 31);
    assert_eq!(watched.source.state().loads, 2, "{:#?}", watched.source.state());
}

#[test]
fn an_endless_burst_is_reloaded_before_its_end() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let max_delay = Duration::from_millis(100);
    let restless = Debounce { quiet: Duration::from_secs(3600), max_delay, ..BY_EVENTS };
    let watched = Watched::start(place.source(""), restless);
    watched.wait_until("a reload amid writes", |source| {
        place.write("new.yaml", rules_of("b"));
        fs::rename(place.path("new.yaml"), place.path("config/a.yaml")).unwrap();
        domains(source) == ["b"]
    });
}

/// A source whose reloads wait after compiling, until the test sends a message.
fn slow_source(place: &Place) -> (Files, Receiver<()>, SyncSender<()>) {
    let (compiled, is_compiled) = sync_channel(0);
    let (go, wait) = sync_channel(0);
    let wait = std::sync::Mutex::new(wait);
    let source = Source::new(CompileOptions::default(), move |_| {
        compiled.send(()).unwrap();
        wait.lock().unwrap().recv().unwrap();
        0
    });
    (Files { source: Arc::new(source), directory: place.directory("") }, is_compiled, go)
}

#[test]
fn a_change_during_a_reload_causes_another() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let (files, is_compiled, go) = slow_source(&place);
    let Files { source, directory } = files;
    let watcher =
        spawn::<SystemEvents, _>(Arc::clone(&source), directory, ManualClock::default(), BY_EVENTS).unwrap();
    is_compiled.recv().unwrap();
    // The files were read and are not served yet.
    place.write("config/a.yaml", rules_of("b"));
    go.send(()).unwrap();
    is_compiled.recv_timeout(Duration::from_secs(20)).expect("the change was lost");
    assert_eq!(domains(&source), ["a"]);
    go.send(()).unwrap();
    wait_until(&source, "the change", |source| domains(source) == ["b"]);
    drop(watcher);
}
