//! The scripts on a real Redis, whose time they are told by hand: over random histories everyone who asks is
//! told what the algorithm itself tells, and what is under a key stays what the algorithm keeps.

use std::{
    cell::RefCell,
    collections::HashMap,
    io::{Read, Write},
    num::NonZeroU32,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;
use crate::{
    algorithm::{
        Algorithm, FixedWindow, Hits, State, Verdict, Window,
        kind::Kind as Name,
        sliding_log::Log,
        tests::{BEGIN, Step, requests, steps, windows},
    },
    clock::Time,
    store::{
        self, looking,
        redis::{
            bundle::{Answered, Bundle, Guard, Guarded, Judge, Outcome, Shown},
            failure::{Failure, Kind},
            resp::Reply,
        },
    },
    table::Table,
};

/// Long enough that no key is lost during a test, however busy the machine.
const SLACK: u32 = 3600;

/// A redis-server of its own. It ends with this.
struct Redis {
    process: Child,
    stream: UnixStream,
    incoming: Vec<u8>,
    /// By the hash of each script, that of one which takes the time from two keys.
    timed: HashMap<String, String>,
    _dir: TempDir,
}

impl Redis {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("redis.sock");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&path)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server can be started");
        let connect = || UnixStream::connect(&path).inspect_err(|_| sleep(Duration::from_millis(10))).ok();
        let stream = (0..1000).find_map(|_| connect()).expect("redis-server listens");
        let mut redis = Self { process, stream, incoming: Vec::new(), timed: HashMap::new(), _dir: dir };
        for script in [&GIVE_BACK, &COUNT_GUARDED, &STATES, &LOGS, &ASK_GUARDED] {
            let own = "call('TIME')";
            assert!(script.text.matches(own).count() <= 1);
            let text = script.text.replace(own, "{ call('GET', 'second'), call('GET', 'micros') }");
            let Reply::Text(hash) = redis.ask(&["SCRIPT", "LOAD", &text]) else { panic!("{text}") };
            redis.timed.insert(script.hash.clone(), String::from_utf8(hash).unwrap());
        }
        redis
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
        let mut bytes = Vec::new();
        resp::write_command(&mut bytes, &words);
        self.stream.write_all(&bytes).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> Reply {
        loop {
            if let Some((reply, length)) = resp::read(&self.incoming).unwrap() {
                self.incoming.drain(..length);
                return reply;
            }
            let mut part = [0; 4096];
            let length = self.stream.read(&mut part).unwrap();
            assert!(length > 0, "redis-server is gone");
            self.incoming.extend(&part[..length]);
        }
    }

    /// What a lane does with a bundle, at this moment.
    fn exchange(&mut self, bundle: &mut Bundle, now: Time) -> Shown {
        let (mut written, mut sent) = (Vec::new(), Vec::new());
        bundle.write(&mut written);
        let (second, micros) = (now.seconds().to_string(), (now.micros() % 1_000_000).to_string());
        resp::write_command(
            &mut sent,
            &[b"MSET", b"second", second.as_bytes(), b"micros", micros.as_bytes()],
        );
        let mut rest = &written[..];
        while let Ok(Some((Reply::List(words), length))) = resp::read(rest) {
            resp::begin_command(&mut sent, words.len());
            for word in words {
                let Reply::Text(word) = word else { panic!("{word:?}") };
                let timed = str::from_utf8(&word).ok().and_then(|word| self.timed.get(word));
                resp::write_word(&mut sent, timed.map_or(&word[..], |timed| timed.as_bytes()));
            }
            rest = &rest[length..];
            if rest.is_empty() {
                break;
            }
        }
        self.stream.write_all(&sent).unwrap();
        self.reply();
        let replies: Vec<_> = (0..bundle.answers()).map(|_| self.reply()).collect();
        let shown = bundle.deal(replies, |kind, error| Failure::new(kind, error));
        bundle.clear();
        shown
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A key as the algorithm alone would keep it.
#[derive(Clone, Debug)]
struct Model {
    algorithm: Algorithm,
    window: Window,
    state: State,
    log: Log,
}

impl Model {
    fn new((algorithm, window): (Algorithm, Window)) -> Self {
        Self { algorithm, window, state: State::default(), log: Log::default() }
    }

    fn ask(&mut self, hits: Hits, now: Time) -> store::Outcome {
        let verdict: Verdict;
        match self.algorithm {
            Algorithm::FixedWindow(limit) => {
                // Its key is of one window, so that another begins with nothing.
                let state = if self.state.end > now { self.state } else { State::default() };
                (self.state, _) = limit.ask(state, hits, now);
                return store::Outcome::Counted(self.state.number);
            }
            Algorithm::SlidingWindow(limit) => (self.state, verdict) = limit.ask(self.state, hits, now),
            Algorithm::Bucket(limit) => (self.state, verdict) = limit.ask(self.state, hits, now),
            Algorithm::SlidingLog(limit) => verdict = limit.ask(&mut self.log, hits, now),
        }
        store::Outcome::Judged(verdict)
    }

    fn would_be_over(&self, hits: Hits, now: Time) -> bool {
        match self.clone().ask(hits, now) {
            store::Outcome::Counted(after) => after > u64::from(self.algorithm.whole()),
            store::Outcome::Judged(verdict) => !verdict.admitted,
        }
    }

    /// The key, which for a fixed window tells when it began.
    fn name(&self, key: usize, now: Time) -> String {
        match self.algorithm {
            Algorithm::FixedWindow(limit) => format!("key {key} {}", limit.window.start(now)),
            _ => format!("key {key}"),
        }
    }

    fn judge(&self) -> Judge {
        Judge::new(self.algorithm, || SLACK).expect("a script knows it")
    }
}

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
    let then = if !step.pause.1.is_multiple_of(3) {
        now.micros()
    } else {
        step.moment(now.micros(), model.window, most)
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
                Guarded { key, by, hits: *hits }
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
        let guarded = keys.map(|key| Guarded { key, by: Guard::Judge(judge), hits: Hits::Take(1) });
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
            let mut bytes = Vec::new();
            resp::write_command(&mut bytes, &[b"DEL", key.as_bytes()]);
            let words: &[&[u8]] = match models[at].algorithm {
                Algorithm::SlidingLog(_) => {
                    &[b"RPUSH", key.as_bytes(), &noise[..11], &noise[5..16], &noise[16..27]]
                }
                Algorithm::Bucket(_) => &[b"SET", key.as_bytes(), &noise[..19]],
                _ => &[b"SET", key.as_bytes(), &noise[..13]],
            };
            resp::write_command(&mut bytes, words);
            redis.stream.write_all(&bytes).unwrap();
            redis.reply();
            redis.reply();
            let mut bundle = Bundle::default();
            let mut heard = bundle.ask(|bundle| judge(bundle, &table, at, &models[at], hits));
            redis.exchange(&mut bundle, now);
            let heard = heard.try_recv().unwrap().unwrap();
            prop_assert!(matches!(heard[0], Outcome::Told(_)), "{:?}", heard);
        }
        Ok(())
    });
}
