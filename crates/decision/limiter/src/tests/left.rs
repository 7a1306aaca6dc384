//! Decisions whose callers leave while they wait for the store.

use std::sync::{Arc, Mutex};

use metrics::CallerLeft;
use net::edges::{Spawn, Spawner, Task};

use super::*;

/// A runtime that keeps its tasks until they are run.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Task>>>);

impl Spawn for Kept {
    fn here(&self) -> Option<Spawner> {
        let kept = self.clone();
        Some(Arc::new(move |task| kept.0.lock().unwrap().push(task)))
    }
}

impl Kept {
    fn run(&self) {
        let tasks = std::mem::take(&mut *self.0.lock().unwrap());
        for task in tasks {
            finish(pin!(task));
        }
    }
}

fn setup() -> (Setup, Kept) {
    let (setup, kept) = (Setup::new(OnStoreFailure::Error, |_| ()), Kept::default());
    let limiter = Arc::into_inner(setup.limiter).expect("it is the only one").owing(Arc::new(kept.clone()));
    (Setup { limiter: Arc::new(limiter), ..setup }, kept)
}

fn wait(setup: &Setup) -> Waiting {
    match setup.limiter.try_decide(&request(&["k"]), setup.limiter.now(), None, None).unwrap() {
        Decided::Wait(waiting) => waiting,
        Decided::Answer(answer) => panic!("only the store knows: {answer:?}"),
    }
}

fn left(setup: &Setup) -> [u64; 2] {
    [CallerLeft::Finished, CallerLeft::Dropped].map(|left| setup.stats.service().callers_left(left).get())
}

fn decided(setup: &Setup) -> u64 {
    setup.stats.requests_by_code().iter().sum()
}

#[test]
fn what_a_caller_leaves_is_decided() {
    let (setup, kept) = setup();
    drop(wait(&setup));
    let mut begun = pin!(wait(&setup));
    assert!(poll(begun.as_mut()).is_none());
    begun.set(wait(&setup));
    finish(begun).decided.unwrap();
    assert_eq!((decided(&setup), setup.limiter.owed()), (1, 2), "the callers of two have left");
    kept.run();
    assert_eq!((decided(&setup), setup.limiter.owed(), left(&setup)), (3, 0, [2, 0]));
    assert_eq!(setup.decide(&["k"]).unwrap().code, Code::OverLimit, "the limit is 3");
}

#[test]
fn what_callers_leave_is_bounded() {
    let (setup, kept) = setup();
    for _ in 0..10_003 {
        drop(wait(&setup));
    }
    assert_eq!((setup.limiter.owed(), left(&setup)), (10_000, [10_000, 3]));
    kept.run();
    assert_eq!((setup.limiter.owed(), decided(&setup)), (0, 10_000));
}

#[test]
fn a_decision_that_panics_is_not_owed() {
    let (setup, kept) = setup();
    let panics = Waiting::new(setup.limiter.clone(), async { panic!("as a test wants it") });
    let mut waiting = pin!(Some(panics));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        poll(waiting.as_mut().as_pin_mut().unwrap()).is_none()
    }));
    assert!(caught.is_err());
    waiting.set(None);
    kept.run();
    assert_eq!((setup.limiter.owed(), left(&setup)), (0, [0, 0]));
}
