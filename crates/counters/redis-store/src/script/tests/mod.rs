//! The scripts on a real Redis with a simulated clock: over random histories, every caller receives the outcome of the
//! algorithm, and every key has the state of the algorithm.

mod commands;
mod holds;
mod model;
mod server;

use std::{cell::RefCell, num::NonZeroU64};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::sync::oneshot;

use crate::{
    failure::FailureKind,
    pipeline::{CheckResult, Counted, RedisPipeline, ScriptCheck},
    resp::Reply,
};
use clock::Time;
use counters::{CounterId, Member, without_taking};
use limit::{
    Algorithm, Fit, FixedWindow, Hits, Kind as Name, Refusal, Window,
    steps::{BEGIN, Step, requests, steps, windows},
};
use model::Model;
use server::Redis;
use wire::{self as remote, Patience, Pipeline};

/// Long enough that no key expires during a test on a busy machine.
const SLACK: u32 = 3600;

fn scripted() -> impl Strategy<Value = (Algorithm, Window)> {
    let name = prop::sample::select(&Name::ALL[1..5]);
    let burst = prop::option::weighted(0.3, any::<u64>().prop_map(|burst| burst % 5000 + 1));
    (name, requests(), windows(), burst).prop_map(|(name, requests, window, burst)| {
        (name.at(requests, window, burst.and_then(NonZeroU64::new)), window)
    })
}

/// No more than are sent.
fn within(hits: Hits) -> Hits {
    match hits {
        Hits::Take(hits) => Hits::Take(hits.min(1 << 53)),
        Hits::Refund(hits) => Hits::Refund(hits.min(1 << 53)),
    }
}

fn decided(outcome: &CheckResult) -> Counted {
    match outcome {
        CheckResult::Counted(outcome) => *outcome,
        other => panic!("{other:?}"),
    }
}

/// The algorithms that count.
const COUNTED: [Name; 5] =
    [Name::FixedWindow, Name::SlidingWindow, Name::SlidingLog, Name::TokenBucket, Name::LeakyBucket];

/// Runs a test with this many random histories. A test derives the key, the time and the hits from a step.
fn histories(
    cases: u32,
    limits: impl Strategy<Value = Vec<(Algorithm, Window)>>,
    most_steps: usize,
    test: impl Fn(&mut Redis, Vec<Model>, Vec<Step>) -> Result<(), TestCaseError>,
) {
    let redis = RefCell::new(Redis::start());
    let config = Config { failure_persistence: None, ..Config::default() };
    // The variable of proptest lowers the number, too.
    let mut runner = TestRunner::new(Config { cases: cases.min(config.cases), ..config });
    let outcome = runner.run(&(limits, steps(most_steps)), |(limits, steps)| {
        redis.borrow_mut().command(&["FLUSHDB"]);
        test(&mut redis.borrow_mut(), limits.into_iter().map(Model::new).collect(), steps)
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The time of a step, and its hits; most steps do not advance the time.
fn moment_and_hits(step: Step, now: Time, model: &Model) -> (Time, Hits) {
    let most = model.algorithm.capacity();
    let then = if step.pause.1.is_multiple_of(3) {
        step.moment(now.micros(), model.window, most)
    } else {
        now.micros()
    };
    // A time of 0 means none.
    (Time::from_micros(then.max(1)), step.hits(most))
}

/// The index of a step's key.
fn place(step: Step, keys: usize) -> usize {
    usize::try_from(step.pause.1 / 3).unwrap_or_default() % keys
}

#[test]
fn every_caller_receives_the_algorithms_outcome() {
    let limits = prop::collection::vec(scripted(), 1..4);
    histories(300, limits, 120, |redis, mut models, steps| {
        let (mut pipeline, mut now) = (RedisPipeline::default(), Time::from_micros(BEGIN));
        let mut waiting = Vec::new();
        for step in steps {
            let at = place(step, models.len());
            let (then, hits) = moment_and_hits(step, now, &models[at]);
            if then != now {
                all_receive(redis, &mut pipeline, now, waiting.drain(..))?;
                now = then;
                // The stored state is read too.
                for (key, model) in models.iter_mut().enumerate() {
                    let received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                        call(pipeline, key, model, Hits::Take(0));
                    });
                    waiting.push((received, model.apply(Hits::Take(0), now)));
                }
            }
            let model = &mut models[at];
            let received =
                pipeline.add_caller(Patience::Timeout, None, |pipeline| call(pipeline, at, model, hits));
            waiting.push((received, model.apply(within(hits), now)));
        }
        all_receive(redis, &mut pipeline, now, waiting.drain(..))
    });
}

fn call(pipeline: &mut RedisPipeline, key: usize, model: &Model, hits: Hits) {
    let key = format!("key {key}");
    pipeline.count_alone(CounterId::of_name(&key), 0, &model.check(&key, hits, Member::Alone));
}

/// Sends a pipeline, and compares each caller's outcome with the expected one.
fn all_receive(
    redis: &mut Redis,
    pipeline: &mut RedisPipeline,
    now: Time,
    waiting: impl Iterator<Item = (oneshot::Receiver<remote::Answered<CheckResult>>, Counted)>,
) -> Result<(), TestCaseError> {
    let learned = redis.exchange(pipeline, now);
    prop_assert!(learned.failures.is_empty(), "{:?}", learned.failures);
    for (mut received, expected) in waiting {
        let received = received.try_recv().unwrap().unwrap();
        prop_assert_eq!(decided(&received[0]), expected, "at {:?}", now);
    }
    Ok(())
}

#[test]
fn rejected_requests_count_only_checks_that_are_over() {
    let fixed = (requests(), windows()).prop_map(|(limit, window)| {
        (Algorithm::FixedWindow(FixedWindow { limit, period: window.into() }), window)
    });
    let limits = prop::collection::vec(prop_oneof![3 => scripted(), 1 => fixed], 1..5);
    histories(300, limits, 60, |redis, mut models, steps| {
        let mut now = Time::from_micros(BEGIN);
        let mut pipeline = RedisPipeline::default();
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
            let fits = request.iter().map(|step| FITS[place(*step, 97) % FITS.len()]);
            let mut refusal = Refusal::default();
            fits.clone().zip(&over).for_each(|(fit, over)| refusal.add(fit, *over));
            let codes: Vec<_> = Refusal::default().codes(fits).collect();
            let is_refused = refusal.is_refused();
            let guarded = checks.iter().zip(&names);
            let guarded = guarded.map(|((at, hits), key)| models[*at].check(key, *hits, Member::Alone));
            let guarded: Vec<_> = guarded.collect();
            let mut received = pipeline
                .add_caller(Patience::Timeout, None, |pipeline| pipeline.count_guarded(&guarded, &codes));
            let learned = redis.exchange(&mut pipeline, now);
            prop_assert!(learned.failures.is_empty(), "{:?}", learned.failures);
            let received = received.try_recv().unwrap().unwrap();
            for (((at, hits), over), received) in checks.into_iter().zip(over).zip(&received) {
                let hits = if is_refused && !over { without_taking(hits) } else { hits };
                prop_assert_eq!(
                    decided(received),
                    models[at].apply(hits, now),
                    "{:?} of {:?}",
                    hits,
                    models[at]
                );
            }
        }
        Ok(())
    });
}

const FITS: [Fit; 5] = [Fit::Must, Fit::Must, Fit::Always, Fit::May(0), Fit::May(1)];

fn of_any_kind() -> impl Strategy<Value = (Algorithm, Window)> {
    let fixed = (requests(), windows()).prop_map(|(limit, window)| {
        (Algorithm::FixedWindow(FixedWindow { limit, period: window.into() }), window)
    });
    prop_oneof![2 => scripted(), 1 => fixed]
}

/// The outcomes of a group with these hits: all of its limits count them, or none.
fn decided_together(models: &mut [Model], hits: Hits, now: Time) -> Vec<Counted> {
    let takes = matches!(hits, Hits::Take(_));
    let is_refused = takes && models.iter().any(|model| model.would_be_over(hits, now));
    let one = |model: &mut Model| if is_refused { model.reject(hits, now) } else { model.apply(hits, now) };
    models.iter_mut().map(one).collect()
}

fn group<'a>(models: &[Model], names: &'a [String], hits: Hits) -> Vec<ScriptCheck<'a>> {
    let group =
        models.iter().zip(names).enumerate().map(|(at, (model, key))| {
            model.check(key, hits, if at == 0 { Member::First } else { Member::Next })
        });
    group.collect()
}

fn names(models: &[Model], now: Time) -> Vec<String> {
    models.iter().enumerate().map(|(at, model)| model.name(at, now)).collect()
}

/// Two rules: all limits, and the last one alone, so that both count one key.
#[test]
fn the_limits_of_a_rule_count_all_or_nothing_for_concurrent_callers() {
    histories(300, prop::collection::vec(of_any_kind(), 1..4), 120, |redis, mut models, steps| {
        let (mut pipeline, mut now, mut last) = (RedisPipeline::default(), Time::from_micros(BEGIN), 0);
        let mut waiting: Vec<(oneshot::Receiver<remote::Answered<CheckResult>>, Vec<Counted>)> = Vec::new();
        for step in steps {
            let at = place(step, models.len());
            let (then, hits) = moment_and_hits(step, now, &models[at]);
            // A fixed window's model knows one window at a time.
            let then = then.max(now);
            if then != now {
                groups_receive(redis, &mut pipeline, now, waiting.drain(..))?;
                now = then;
            }
            let hits = within(hits);
            // Some count one limit alone, as if the others were replaced.
            let of = if step.hits.1 % 5 == 0 { models.len() - 1.. } else { 0.. };
            if std::mem::replace(&mut last, of.start) != of.start {
                // Callers of another group receive the outcomes before or after all of this group.
                groups_receive(redis, &mut pipeline, now, waiting.drain(..))?;
            }
            let names = &names(&models, now)[of.clone()];
            let asked = &mut models[of];
            let id = CounterId::of_name(&names[0]);
            let received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count_together(id, &group(asked, names, hits));
            });
            waiting.push((received, decided_together(asked, hits, now)));
        }
        groups_receive(redis, &mut pipeline, now, waiting.drain(..))
    });
}

/// Sends a pipeline, and compares each caller's outcomes of its group with the expected ones.
fn groups_receive(
    redis: &mut Redis,
    pipeline: &mut RedisPipeline,
    now: Time,
    waiting: impl Iterator<Item = (oneshot::Receiver<remote::Answered<CheckResult>>, Vec<Counted>)>,
) -> Result<(), TestCaseError> {
    let learned = redis.exchange(pipeline, now);
    prop_assert!(learned.failures.is_empty(), "{:?}", learned.failures);
    for (mut received, expected) in waiting {
        let received: Vec<_> = received.try_recv().unwrap().unwrap().iter().map(decided).collect();
        prop_assert_eq!(received, expected, "at {:?}", now);
    }
    Ok(())
}

#[test]
fn a_group_of_a_rejected_request_counts_nothing() {
    histories(300, prop::collection::vec(of_any_kind(), 2..6), 60, |redis, mut models, steps| {
        let (mut pipeline, mut now) = (RedisPipeline::default(), Time::from_micros(BEGIN));
        for step in steps {
            // Some are in a group; the others are alone and have their own hits.
            let of_group = 1 + place(step, models.len());
            let (then, hits) = moment_and_hits(step, now, &models[0]);
            now = then.max(now);
            let hits = within(hits);
            let one = if step.hits.0 % 2 == 0 { Hits::Take(1) } else { Hits::Take(0) };
            let names = names(&models, now);
            let alone = models.iter().zip(&names).skip(of_group);
            let mut checks = group(&models[..of_group], &names, hits);
            checks.extend(alone.map(|(model, key)| model.check(key, one, Member::Alone)));
            let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count_guarded(&checks, &vec![0; checks.len()]);
            });
            let (group, alone) = models.split_at_mut(of_group);
            let over: Vec<_> = alone.iter().map(|model| model.would_be_over(one, now)).collect();
            let any_over = over.contains(&true) || group.iter().any(|model| model.would_be_over(hits, now));
            let mut expected = match hits {
                Hits::Take(_) if any_over => group.iter_mut().map(|model| model.reject(hits, now)).collect(),
                hits => decided_together(group, hits, now),
            };
            for (model, over) in alone.iter_mut().zip(over) {
                expected.push(model.apply(if any_over && !over { without_taking(one) } else { one }, now));
            }
            let learned = redis.exchange(&mut pipeline, now);
            prop_assert!(learned.failures.is_empty(), "{:?}", learned.failures);
            let received: Vec<_> = received.try_recv().unwrap().unwrap().iter().map(decided).collect();
            prop_assert_eq!(received, expected, "{:?} of {:?}", hits, models);
        }
        Ok(())
    });
}

/// A failed request must not be counted by the limits before the one that failed.
#[test]
fn nothing_is_counted_if_one_key_of_a_rule_has_a_foreign_value() {
    let mut redis = Redis::start();
    let now = Time::from_micros(BEGIN);
    let minute = Window::of_seconds(60).unwrap();
    redis.command(&["RPUSH", "a list", "1"]);
    redis.command(&["SET", "a text", "not a number"]);
    redis.command(&["SET", "a broken number", "1.5"]);
    let mut pipeline = RedisPipeline::default();
    for foreign in ["a list", "a text", "a broken number"] {
        for (of_good, of_foreign) in COUNTED.iter().flat_map(|one| COUNTED.map(|other| (*one, other))) {
            let model = |kind: Name| Model::new((kind.at(9, minute, None), minute));
            let models = [model(of_good), model(of_foreign)];
            let good = format!("{of_good:?} beside {of_foreign:?} at {foreign}");
            let names = [good.clone(), foreign.to_owned()];
            let checks = group(&models, &names, Hits::Take(2));
            let id = CounterId::of_name(&good);
            let mut received =
                pipeline.add_caller(Patience::Timeout, None, |pipeline| pipeline.count_together(id, &checks));
            redis.exchange(&mut pipeline, now);
            let received = received.try_recv().unwrap().unwrap();
            assert!(
                received.iter().all(|received| matches!(received, CheckResult::Failed(_))),
                "{good}: {received:?}"
            );
            let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count_guarded(&checks, &vec![0; checks.len()]);
            });
            redis.exchange(&mut pipeline, now);
            assert!(matches!(received.try_recv().unwrap().unwrap()[0], CheckResult::Failed(_)), "{good}");
            assert_eq!(redis.command(&["EXISTS", good.as_str()]), Reply::Integer(0), "{good}");
        }
    }
    assert_eq!(redis.command(&["GET", "a broken number"]), Reply::Text(b"1.5".to_vec()));
}

/// A script's stack bounds the number of runs.
#[test]
fn many_callers_with_alternating_hits_are_counted() {
    let mut redis = Redis::start();
    let now = Time::from_micros(BEGIN);
    let day = Window::of_seconds(86_400).unwrap();
    for kinds in [[Name::FixedWindow, Name::FixedWindow], [Name::FixedWindow, Name::TokenBucket]] {
        let mut models = kinds.map(|kind| Model::new((kind.at(9_000, day, None), day)));
        let names = kinds.map(|kind| format!("{kinds:?} {kind:?}"));
        let names = [format!("{} 1", names[0]), format!("{} 2", names[1])];
        let mut pipeline = RedisPipeline::default();
        let mut waiting = Vec::new();
        for number in 0..9_000 {
            let hits = Hits::Take(1 + number % 2);
            let checks = group(&models, &names, hits);
            let received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count_together(CounterId::of_name(&names[0]), &checks);
            });
            waiting.push((received, decided_together(&mut models, hits, now)));
        }
        groups_receive(&mut redis, &mut pipeline, now, waiting.into_iter()).unwrap();
    }
}

#[test]
fn a_key_expires_shortly_after_its_state_is_empty() {
    let mut redis = Redis::start();
    let now = Time::from_micros(BEGIN);
    let minute = Window::of_seconds(60).unwrap();
    // The seconds until the end of the next window.
    let until_window_after_next = minute.end(now).seconds() + 60 - now.seconds();
    for (name, needed) in [
        (Name::SlidingWindow, until_window_after_next),
        (Name::SlidingLog, 60),
        // Three of ten hits, which refill in six seconds each.
        (Name::TokenBucket, 18),
        (Name::LeakyBucket, 18),
    ] {
        let model = Model::new((name.at(10, minute, NonZeroU64::new(10)), minute));
        let mut pipeline = RedisPipeline::default();
        drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            let check = ScriptCheck { seconds: 7, ..model.check(name.name(), Hits::Take(3), Member::Alone) };
            pipeline.count_alone(CounterId::of_name(name.name()), 0, &check);
        }));
        redis.exchange(&mut pipeline, now);
        let Reply::Integer(lives) = redis.command(&["TTL", name.name()]) else { panic!("{name:?}") };
        let lives = u64::try_from(lives).unwrap();
        assert!(
            (needed + 1..=needed + 3 + 7).contains(&lives),
            "{name:?} needs {needed} and expires in {lives}"
        );
    }
}

#[test]
fn a_foreign_value_fails_only_the_callers_of_its_key() {
    let mut redis = Redis::start();
    let now = Time::from_micros(BEGIN);
    let minute = Window::of_seconds(60).unwrap();
    redis.command(&["RPUSH", "a list", "1"]);
    redis.command(&["SET", "a number", "12"]);
    redis.command(&["SET", "a short text", "0123456789abcdef!"]);
    redis.command(&["SET", "a long text", &"not a log ".repeat(1000)]);
    for name in &Name::ALL[1..5] {
        let model = Model::new((name.at(10, minute, None), minute));
        let keys = ["good", "a list", "a number", "a short text", "a long text"];
        let mut pipeline = RedisPipeline::default();
        let received = keys.map(|key| {
            let own = if key == "good" { name.name() } else { key };
            pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count_alone(
                    CounterId::of_name(own),
                    0,
                    &model.check(own, Hits::Take(1), Member::Alone),
                );
            })
        });
        let learned = redis.exchange(&mut pipeline, now);
        assert!(
            learned
                .failures
                .iter()
                .all(|failure| failure.kind == FailureKind::NotANumber
                    && failure.message.contains(name.name())),
            "{:?}",
            learned.failures
        );
        for (key, mut received) in keys.into_iter().zip(received) {
            let received = received.try_recv().unwrap().unwrap();
            assert_eq!(
                matches!(received[0], CheckResult::Failed(_)),
                key != "good",
                "{name:?} {key}: {received:?}"
            );
        }
        let guarded = keys.map(|key| model.check(key, Hits::Take(1), Member::Alone));
        let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            pipeline.count_guarded(&guarded, &vec![0; guarded.len()]);
        });
        redis.exchange(&mut pipeline, now);
        assert!(matches!(received.try_recv().unwrap().unwrap()[0], CheckResult::Failed(_)));
    }
    assert_eq!(redis.command(&["TYPE", "a list"]), Reply::Text(b"list".to_vec()));
    assert_eq!(redis.command(&["GET", "a number"]), Reply::Text(b"12".to_vec()));
}

#[test]
fn any_bytes_of_a_states_length_are_accepted() {
    let limits = prop::collection::vec(scripted(), 3);
    histories(100, limits, 30, |redis, models, steps| {
        let mut now = Time::from_micros(BEGIN);
        for step in steps {
            let at = place(step, models.len());
            let hits;
            (now, hits) = moment_and_hits(step, now, &models[at]);
            let key = format!("key {at}");
            let noise =
                [step.pause.1, step.hits.1, now.micros(), step.hits.1 >> 40].map(u64::to_le_bytes).concat();
            redis.command(&["DEL", key.as_str()]);
            let words: &[&[u8]] = match models[at].algorithm {
                Algorithm::SlidingLog(_) => {
                    &[b"RPUSH", key.as_bytes(), &noise[..11], &noise[5..16], &noise[16..27]]
                }
                Algorithm::Bucket(_) => &[b"SET", key.as_bytes(), &noise[..19]],
                _ => &[b"SET", key.as_bytes(), &noise[..13]],
            };
            redis.command(words);
            let mut pipeline = RedisPipeline::default();
            let mut received = pipeline
                .add_caller(Patience::Timeout, None, |pipeline| call(pipeline, at, &models[at], hits));
            redis.exchange(&mut pipeline, now);
            let received = received.try_recv().unwrap().unwrap();
            prop_assert!(matches!(received[0], CheckResult::Counted(_)), "{:?}", received);
        }
        Ok(())
    });
}
