//! The scripts on a real Redis, whose time they are told by hand: over random histories everyone who asks is
//! told what the algorithm itself tells, and what is under a key stays what the algorithm keeps.

mod model;
mod server;

use std::{cell::RefCell, num::NonZeroU32};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::sync::oneshot;

use crate::{
    algorithm::{
        Algorithm, FixedWindow, Hits, Kind as Name, Window,
        tests::{BEGIN, Step, requests, steps, windows},
    },
    clock::Time,
    store::{
        self,
        lane::Pipeline,
        looking,
        redis::{
            bundle::{Answered, Bundle, Guard, Guarded, Judge, Outcome},
            failure::Kind,
            resp::Reply,
        },
    },
    table::Table,
};
use model::Model;
use server::Redis;

/// Long enough that no key is lost during a test, however busy the machine.
const SLACK: u32 = 3600;

fn scripted() -> impl Strategy<Value = (Algorithm, Window)> {
    let name = prop::sample::select(&Name::ALL[1..]);
    let burst = prop::option::weighted(0.3, any::<u32>().prop_map(|burst| burst % 5000 + 1));
    (name, requests(), windows(), burst).prop_map(|(name, requests, window, burst)| {
        (name.at(requests, window, burst.and_then(NonZeroU32::new)), window)
    })
}

/// So few that doubles are exact.
fn within(hits: Hits) -> Hits {
    match hits {
        Hits::Take(hits) => Hits::Take(hits.min(1 << 45)),
        Hits::GiveBack(hits) => Hits::GiveBack(hits.min(1 << 45)),
    }
}

fn told(outcome: &Outcome) -> store::Outcome {
    match outcome {
        Outcome::Told(told) => *told,
        other => panic!("{other:?}"),
    }
}

/// Asks as many histories as that whether everything holds. A step is a pair of fields of which a test makes
/// what it wants: whose key, when, how many hits.
fn holds(
    cases: u32,
    limits: impl Strategy<Value = Vec<(Algorithm, Window)>>,
    most_steps: usize,
    test: impl Fn(&mut Redis, Vec<Model>, Vec<Step>) -> Result<(), TestCaseError>,
) {
    let redis = RefCell::new(Redis::start());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(limits, steps(most_steps)), |(limits, steps)| {
        redis.borrow_mut().ask(&["FLUSHDB"]);
        test(&mut redis.borrow_mut(), limits.into_iter().map(Model::new).collect(), steps)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The moment of a step, and its hits; most steps stand still.
fn moment_and_hits(step: Step, now: Time, model: &Model) -> (Time, Hits) {
    let most = u64::from(model.algorithm.whole());
    let then = if step.pause.1.is_multiple_of(3) {
        step.moment(now.micros(), model.window, most)
    } else {
        now.micros()
    };
    // A moment of 0 is none.
    (Time::from_micros(then.max(1)), step.hits(most))
}

/// Whose key a step asks.
fn place(step: Step, keys: usize) -> usize {
    usize::try_from(step.pause.1 / 3).unwrap_or_default() % keys
}

#[test]
fn everyone_is_told_what_the_algorithm_tells_each_alone() {
    let limits = prop::collection::vec(scripted(), 1..4);
    holds(300, limits, 120, |redis, mut models, steps| {
        let table = Table::<()>::new(10);
        let (mut bundle, mut now) = (Bundle::default(), Time::from_micros(BEGIN));
        let mut waiting = Vec::new();
        for step in steps {
            let at = place(step, models.len());
            let (then, hits) = moment_and_hits(step, now, &models[at]);
            if then != now {
                all_are_told(redis, &mut bundle, now, waiting.drain(..))?;
                now = then;
                // What is kept is looked at, too.
                for (key, model) in models.iter_mut().enumerate() {
                    let heard = bundle.ask(|bundle| judge(bundle, &table, key, model, Hits::Take(0)));
                    waiting.push((heard, model.ask(Hits::Take(0), now)));
                }
            }
            let model = &mut models[at];
            let heard = bundle.ask(|bundle| judge(bundle, &table, at, model, hits));
            waiting.push((heard, model.ask(within(hits), now)));
        }
        all_are_told(redis, &mut bundle, now, waiting.drain(..))
    });
}

fn judge(bundle: &mut Bundle, table: &Table<()>, key: usize, model: &Model, hits: Hits) {
    let key = format!("key {key}");
    bundle.judge(&key, table.key(&key), 0, model.judge(), hits);
}

/// Sends a bundle, and holds what everyone hears against what is expected.
fn all_are_told(
    redis: &mut Redis,
    bundle: &mut Bundle,
    now: Time,
    waiting: impl Iterator<Item = (oneshot::Receiver<Answered>, store::Outcome)>,
) -> Result<(), TestCaseError> {
    let shown = redis.exchange(bundle, now);
    prop_assert!(shown.failures.is_empty(), "{:?}", shown.failures);
    for (mut heard, expected) in waiting {
        let heard = heard.try_recv().unwrap().unwrap();
        prop_assert_eq!(told(&heard[0]), expected, "at {}", now);
    }
    Ok(())
}

#[test]
fn refused_requests_count_only_where_they_are_over() {
    let fixed = (requests(), windows())
        .prop_map(|(limit, window)| (Algorithm::FixedWindow(FixedWindow { limit, window }), window));
    let limits = prop::collection::vec(prop_oneof![3 => scripted(), 1 => fixed], 1..5);
    holds(300, limits, 60, |redis, mut models, steps| {
        let mut now = Time::from_micros(BEGIN);
        let mut bundle = Bundle::default();
        for request in steps.chunks(4) {
            let mut checks = Vec::new();
            for step in request {
                let at = place(*step, models.len());
                let (then, hits) = moment_and_hits(*step, now, &models[at]);
                now = then.max(now);
                checks.push((at, within(hits)));
            }
            let names: Vec<_> = checks.iter().map(|(at, _)| models[*at].name(*at, now)).collect();
            let over: Vec<_> =
                checks.iter().map(|(at, hits)| models[*at].would_be_over(*hits, now)).collect();
            let any_over = over.contains(&true);
            let guarded = checks.iter().zip(&names).map(|((at, hits), key)| {
                let by = match models[*at].algorithm {
                    Algorithm::FixedWindow(limit) => Guard::Count { limit: limit.limit, seconds: SLACK },
                    _ => Guard::Judge(models[*at].judge()),
                };
                Guarded { key: key.as_str().into(), by, hits: *hits }
            });
            let guarded: Vec<_> = guarded.collect();
            let mut heard = bundle.ask(|bundle| bundle.count_guarded(guarded.into_iter()));
            let shown = redis.exchange(&mut bundle, now);
            prop_assert!(shown.failures.is_empty(), "{:?}", shown.failures);
            let heard = heard.try_recv().unwrap().unwrap();
            for (((at, hits), over), heard) in checks.into_iter().zip(over).zip(&heard) {
                let hits = if any_over && !over { looking(hits) } else { hits };
                prop_assert_eq!(told(heard), models[at].ask(hits, now), "{:?} of {:?}", hits, models[at]);
            }
        }
        Ok(())
    });
}

#[test]
fn a_key_lives_until_nothing_is_kept_there_and_little_longer() {
    let mut redis = Redis::start();
    let (table, now) = (Table::<()>::new(10), Time::from_micros(BEGIN));
    let minute = Window::of_seconds(60).unwrap();
    // The seconds that are left of the window, and of the one behind it.
    let until_window_after_next = minute.end(now).seconds() + 60 - now.seconds();
    for (name, needed) in [
        (Name::SlidingWindow, until_window_after_next),
        (Name::SlidingLog, 60),
        // Three of ten hits, each of which takes six seconds to come back.
        (Name::TokenBucket, 18),
        (Name::LeakyBucket, 18),
    ] {
        let algorithm = name.at(10, minute, NonZeroU32::new(10));
        let judge = Judge::new(algorithm, || 7).unwrap();
        let mut bundle = Bundle::default();
        drop(bundle.ask(|bundle| bundle.judge(name.name(), table.key(name.name()), 0, judge, Hits::Take(3))));
        redis.exchange(&mut bundle, now);
        let Reply::Integer(lives) = redis.ask(&["TTL", name.name()]) else { panic!("{name:?}") };
        let lives = u64::try_from(lives).unwrap();
        assert!((needed + 1..=needed + 3 + 7).contains(&lives), "{name:?} needs {needed} and lives {lives}");
    }
}

#[test]
fn what_is_under_a_key_and_is_no_state_fails_those_who_ask_it_alone() {
    let mut redis = Redis::start();
    let (table, now) = (Table::<()>::new(10), Time::from_micros(BEGIN));
    let minute = Window::of_seconds(60).unwrap();
    redis.ask(&["RPUSH", "a list", "1"]);
    redis.ask(&["SET", "a number", "12"]);
    redis.ask(&["SET", "a short text", "0123456789abcdef!"]);
    redis.ask(&["SET", "a long text", &"not a log ".repeat(1000)]);
    for name in &Name::ALL[1..] {
        let judge = Judge::new(name.at(10, minute, None), || SLACK).unwrap();
        let keys = ["good", "a list", "a number", "a short text", "a long text"];
        let mut bundle = Bundle::default();
        let heard = keys.map(|key| {
            let own = if key == "good" { name.name() } else { key };
            bundle.ask(|bundle| bundle.judge(own, table.key(own), 0, judge, Hits::Take(1)))
        });
        let shown = redis.exchange(&mut bundle, now);
        assert!(
            shown
                .failures
                .iter()
                .all(|failure| failure.kind == Kind::NotANumber && failure.message.contains(name.name())),
            "{:?}",
            shown.failures
        );
        for (key, mut heard) in keys.into_iter().zip(heard) {
            let heard = heard.try_recv().unwrap().unwrap();
            assert_eq!(matches!(heard[0], Outcome::Failed(_)), key != "good", "{name:?} {key}: {heard:?}");
        }
        let guarded =
            keys.map(|key| Guarded { key: key.into(), by: Guard::Judge(judge), hits: Hits::Take(1) });
        let mut heard = bundle.ask(|bundle| bundle.count_guarded(guarded.into_iter()));
        redis.exchange(&mut bundle, now);
        assert!(matches!(heard.try_recv().unwrap().unwrap()[0], Outcome::Failed(_)));
    }
    assert_eq!(redis.ask(&["TYPE", "a list"]), Reply::Text(b"list".to_vec()));
    assert_eq!(redis.ask(&["GET", "a number"]), Reply::Text(b"12".to_vec()));
}

#[test]
fn any_bytes_of_a_states_length_are_taken_for_one() {
    let limits = prop::collection::vec(scripted(), 3);
    holds(100, limits, 30, |redis, models, steps| {
        let (table, mut now) = (Table::<()>::new(10), Time::from_micros(BEGIN));
        for step in steps {
            let at = place(step, models.len());
            let hits;
            (now, hits) = moment_and_hits(step, now, &models[at]);
            let key = format!("key {at}");
            let noise =
                [step.pause.1, step.hits.1, now.micros(), step.hits.1 >> 40].map(u64::to_le_bytes).concat();
            redis.ask(&["DEL", key.as_str()]);
            let words: &[&[u8]] = match models[at].algorithm {
                Algorithm::SlidingLog(_) => {
                    &[b"RPUSH", key.as_bytes(), &noise[..11], &noise[5..16], &noise[16..27]]
                }
                Algorithm::Bucket(_) => &[b"SET", key.as_bytes(), &noise[..19]],
                _ => &[b"SET", key.as_bytes(), &noise[..13]],
            };
            redis.ask(words);
            let mut bundle = Bundle::default();
            let mut heard = bundle.ask(|bundle| judge(bundle, &table, at, &models[at], hits));
            redis.exchange(&mut bundle, now);
            let heard = heard.try_recv().unwrap().unwrap();
            prop_assert!(matches!(heard[0], Outcome::Told(_)), "{:?}", heard);
        }
        Ok(())
    });
}
