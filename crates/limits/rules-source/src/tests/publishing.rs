//! The served rules and the reported state after each reload.

use std::sync::Weak;

use super::*;

fn at(seconds: u64) -> Time {
    Time::from_seconds(seconds)
}

#[test]
fn serves_nothing_before_the_first_valid_set() {
    let place = Place::new();
    let source = place.source("");
    assert!(source.current().is_none());
    assert_eq!(source.reload(at(1)), ReloadOutcome::Rejected, "the directory is missing");
    assert!(source.current().is_none());
    let state = source.state();
    assert_eq!((state.loads, state.errors, state.is_current), (0, 1, false));
    assert_eq!(state.last_success, None);
    assert!(state.last_error.unwrap().1[0].message.contains("does not exist"));
}

#[test]
fn serves_a_valid_set_with_its_attached_data() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    place.write("config/b.yaml", rules_of("b"));
    let source = place.source("");
    assert_eq!(source.reload(at(5)), ReloadOutcome::Loaded);
    assert_eq!(domains(&source), ["a", "b"]);
    assert_eq!(source.load().as_ref().map(|set| set.attached), Some(2));
    let state = source.state();
    assert_eq!((state.loads, state.errors, state.is_current), (1, 0, true));
    assert_eq!((state.files, state.domains, state.last_success), (2, 2, Some(at(5))));
    assert_eq!(state.last_error, None);
    assert_ne!(state.hash, 0);
}

#[test]
fn reports_an_invalid_set_and_keeps_the_previous_one() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let source = place.source("");
    source.reload(at(1));
    let good = source.state();

    place.write("config/b.yaml", BAD);
    assert_eq!(source.reload(at(2)), ReloadOutcome::Rejected);
    assert_eq!(source.reload(at(3)), ReloadOutcome::Unchanged, "rejected once, not each time");
    assert_eq!(domains(&source), ["a"]);
    let bad = source.state();
    assert_eq!((bad.loads, bad.errors, bad.is_current), (1, 1, false));
    assert_eq!((bad.hash, bad.files, bad.last_success), (good.hash, 1, Some(at(1))));
    let (when, errors) = bad.last_error.unwrap();
    assert_eq!(when, at(2));
    assert!(errors[0].file.ends_with("config/b.yaml"), "{errors:#?}");

    std::fs::remove_file(place.path("config/b.yaml")).unwrap();
    assert_eq!(source.reload(at(4)), ReloadOutcome::Loaded);
    let again = source.state();
    assert_eq!((again.loads, again.errors, again.is_current), (2, 1, true));
    assert_eq!((again.hash, again.last_success), (good.hash, Some(at(4))));
    assert_eq!(again.last_error.map(|(when, _)| when), Some(at(2)), "the last error is still reported");
}

#[test]
#[cfg(target_os = "linux")]
fn an_unreadable_file_rejects_the_set_and_the_others_are_checked() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let source = place.source("");
    source.reload(at(1));
    place.write("config/b.yaml", BAD);
    // Not even root can read it: address 0 is never mapped.
    place.link("config/c.yaml", "/proc/self/mem");
    assert_eq!(source.reload(at(2)), ReloadOutcome::Rejected);
    let files: Vec<String> =
        source.state().last_error.unwrap().1.into_iter().map(|error| error.file).collect();
    for name in ["b.yaml", "c.yaml"] {
        assert!(files.iter().any(|file| file.ends_with(name)), "{name} is not among {files:?}");
    }
    assert_eq!(domains(&source), ["a"]);
}

#[test]
fn unchanged_files_are_not_reloaded() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let source = place.source("");
    assert_eq!(source.reload(at(1)), ReloadOutcome::Loaded);
    let served = source.current().unwrap();
    place.write("config/a.yaml", rules_of("a"));
    assert_eq!(source.reload(at(2)), ReloadOutcome::Unchanged);
    assert!(Arc::ptr_eq(&served, &source.current().unwrap()));
    assert_eq!(source.state().loads, 1);
}

#[test]
fn the_source_frees_a_replaced_set_after_its_last_request() {
    let place = Place::new();
    place.write("config/a.yaml", rules_of("a"));
    let source = place.source("");
    source.reload(at(1));
    let in_flight = source.load();
    let watched: Weak<_> = Arc::downgrade(in_flight.as_ref().unwrap());

    place.write("config/a.yaml", rules_of("b"));
    source.reload(at(2));
    assert_eq!(in_flight.as_ref().unwrap().rules.domains().count(), 1);
    drop(in_flight);
    assert!(watched.upgrade().is_some(), "the request's thread freed the rules");
    source.free_retired();
    assert!(watched.upgrade().is_none(), "the rules were not freed");
}
