//! Pipelines against a model of a server, and against one caller at a time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    failure,
    resp::{self, Reply},
};
use counters::Member;
use limit::{Algorithm, Kind, Window, fixed_window};
use wire::{self as remote, Patience};

/// Parses and runs the commands that count.
#[derive(Default)]
struct Server {
    counters: BTreeMap<String, i64>,
    expiries: BTreeMap<String, u64>,
    /// It has received the source of the script.
    scripts: bool,
}

impl Server {
    fn serve(&mut self, bytes: &[u8]) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut at = 0;
        while let Some((Reply::List(words), length)) = resp::read(&bytes[at..]).unwrap() {
            let words: Vec<_> = words
                .into_iter()
                .map(|word| match word {
                    Reply::Text(word) => word,
                    other => panic!("{other:?}"),
                })
                .collect();
            let texts: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            replies.push(self.command(&texts, words.last().unwrap()));
            at += length;
            if at == bytes.len() {
                break;
            }
        }
        replies
    }

    fn command(&mut self, words: &[String], last: &[u8]) -> Reply {
        match words[0].as_str() {
            "GET" => match self.counters.get(&words[1]) {
                Some(count) => Reply::Text(count.to_string().into_bytes()),
                None => Reply::Nil,
            },
            "INCRBY" => {
                let count = self.counters.entry(words[1].clone()).or_default();
                *count += words[2].parse::<i64>().unwrap();
                Reply::Integer(*count)
            }
            "EXPIRE" => {
                self.expiries.insert(words[1].clone(), words[2].parse().unwrap());
                Reply::Integer(1)
            }
            "ASKING" => Reply::Text(b"OK".to_vec()),
            "EVALSHA" if !self.scripts => Reply::Error("NOSCRIPT No matching script.".into()),
            "EVAL" | "EVALSHA" => {
                self.scripts = true;
                let count = self.counters.get_mut(&words[3]);
                let before = count.as_deref().copied().unwrap_or_default();
                if let Some(count) = count {
                    let (runs, _) = last[30..].as_chunks::<12>();
                    for run in runs {
                        let hits = i64::from_le_bytes(run[..8].try_into().unwrap());
                        let times = u32::from_le_bytes(run[8..].try_into().unwrap());
                        *count = (*count + hits * i64::from(times)).max(0);
                    }
                }
                Reply::List(vec![Reply::Integer(before)])
            }
            other => panic!("{other}"),
        }
    }

    /// Sends and completes a pipeline as a connection does.
    fn exchange(&mut self, pipeline: &mut RedisPipeline) -> Learned {
        let mut bytes = Vec::new();
        pipeline.write(&mut bytes);
        let mut replies = self.serve(&bytes);
        assert_eq!(replies.len(), pipeline.replies());
        let unknown = pipeline.unknown_scripts(&replies);
        bytes.clear();
        pipeline.write_with_scripts(&unknown, &mut bytes);
        for (at, reply) in unknown.iter().flat_map(|unknown| unknown.replies.clone()).zip(self.serve(&bytes))
        {
            replies[at] = reply;
        }
        pipeline.complete(replies, |kind, error| Failure::new(kind, format!("redis a:1: {error}")))
    }
}

const HOUR: Expiry = Expiry { seconds: 3600, end: Time::from_seconds(7200), set: Expire::Set };

fn alone(key: &str, algorithm: Algorithm, hits: Hits) -> ScriptCheck<'_> {
    ScriptCheck { key: key.into(), algorithm, seconds: 0, uncached: None, hits, member: Member::Alone }
}

fn fixed(key: &str, hits: Hits) -> ScriptCheck<'_> {
    alone(key, Kind::FixedWindow.at(5, Window::of_seconds(3600).unwrap(), None), hits)
}

fn counts(answered: remote::Answered<CheckResult>) -> Vec<u64> {
    let outcomes = answered.unwrap();
    let count = |outcome: &CheckResult| match outcome {
        CheckResult::Counted(Counted::After(count)) => *count,
        other => panic!("{other:?}"),
    };
    outcomes.iter().map(count).collect()
}

fn any_hits() -> impl Strategy<Value = Hits> {
    prop_oneof![
        6 => (0..5_u64).prop_map(Hits::Take),
        1 => any::<u64>().prop_map(|hits| Hits::Take(hits % (1 << 40))),
        2 => (0..9_u64).prop_map(Hits::Refund),
    ]
}

proptest! {
    #[test]
    fn callers_of_one_pipeline_get_the_outcomes_they_would_get_alone(
        pipelines in proptest::collection::vec(
            proptest::collection::vec(
                proptest::collection::vec((0..4_usize, any_hits()), 1..4), 1..12),
            1..5),
    ) {
        let mut server = Server { scripts: true, ..Server::default() };
        let mut alone = BTreeMap::<usize, u64>::new();
        let mut pipeline = RedisPipeline::default();
        for callers in pipelines {
            let mut received = Vec::new();
            for checks in &callers {
                received.push(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                    for (key, hits) in checks {
                        let key = format!("key {key}");
                        match hits {
                            Hits::Take(hits) => pipeline.count(&key, CounterId::of_name(&key), *hits, HOUR),
                            Hits::Refund(_) => pipeline.count_together(CounterId::of_name(&key), &[fixed(&key, *hits)]),
                        }
                    }
                }));
            }
            prop_assert_eq!(pipeline.checks(), callers.iter().map(Vec::len).sum::<usize>());
            let learned = server.exchange(&mut pipeline);
            prop_assert!(learned.failures.is_empty() && learned.missing_ttl.is_empty());
            for (checks, mut received) in callers.into_iter().zip(received) {
                let expected: Vec<u64> = checks.into_iter().map(|(key, hits)| {
                    let count = alone.entry(key).or_default();
                    *count = fixed_window::count(*count, hits);
                    *count
                }).collect();
                prop_assert_eq!(counts(received.try_recv().unwrap()), expected);
            }
            pipeline.clear();
        }
        for (key, count) in &server.counters {
            prop_assert_eq!(server.expiries.get(key), Some(&3600), "{} is {}", key, count);
        }
    }
}

#[test]
fn hits_on_one_key_share_a_command_and_a_read_is_a_get() {
    let mut pipeline = RedisPipeline::default();
    for _ in 0..50 {
        drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            pipeline.count("a", CounterId::of_name("a"), 2, HOUR);
        }));
    }
    drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("b", CounterId::of_name("b"), 0, HOUR);
    }));
    let mut bytes = Vec::new();
    pipeline.write(&mut bytes);
    let words = "*3 $6 INCRBY $1 a $3 100 *3 $6 EXPIRE $1 a $4 3600 *2 $3 GET $1 b ";
    assert_eq!(String::from_utf8(bytes).unwrap().replace("\r\n", " "), words);
    assert_eq!((pipeline.replies(), pipeline.checks()), (3, 51));
}

#[test]
fn the_source_of_an_unknown_script_is_sent() {
    let (mut server, mut pipeline) = (Server::default(), RedisPipeline::default());
    server.counters.insert("a".into(), 5);
    for left in [3, 1, 0] {
        let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            pipeline.count_together(CounterId::of_name("a"), &[fixed("a", Hits::Refund(2))]);
        });
        server.exchange(&mut pipeline);
        assert_eq!(counts(received.try_recv().unwrap()), [left]);
        pipeline.clear();
    }
}

#[test]
fn detects_a_key_that_lost_its_expiry() {
    let (mut server, mut pipeline) = (Server::default(), RedisPipeline::default());
    let known = Expiry { set: Expire::Known, ..HOUR };
    drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("a", CounterId::of_name("a"), 1, known);
    }));
    let learned = server.exchange(&mut pipeline);
    assert_eq!(learned.missing_ttl, [("a".into(), 3600)]);
    pipeline.clear();
    pipeline.expire("a", 3600);
    server.exchange(&mut pipeline);
    assert_eq!(server.expiries.get("a"), Some(&3600));
}

/// The outcome and the findings of one hit with these replies.
fn learned_from(expiry: Expiry, replies: Vec<Reply>) -> (CheckResult, Learned) {
    let mut pipeline = RedisPipeline::default();
    let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("a", CounterId::of_name("a"), 1, expiry);
    });
    let learned = pipeline.complete(replies, |kind, error| Failure::new(kind, error));
    (received.try_recv().unwrap().unwrap()[0].clone(), learned)
}

#[test]
fn an_expiry_is_known_when_the_server_has_confirmed_it() {
    let denied =
        || Reply::Error("NOPERM this user has no permissions to run the 'expire' command".to_owned());
    for (set, known, lost) in [
        (Reply::Integer(1), true, 0),
        // The key was evicted meanwhile. The next hit creates it again.
        (Reply::Integer(0), false, 0),
        (denied(), false, 1),
        (Reply::Error("ERR timeout".to_owned()), false, 1),
    ] {
        let (outcome, learned) = learned_from(HOUR, vec![Reply::Integer(1), set.clone()]);
        assert!(matches!(outcome, CheckResult::Counted(Counted::After(1))), "it was counted: {outcome:?}");
        assert_eq!(!learned.expiring.is_empty(), known, "{set:?}");
        assert_eq!(learned.without_expiry, lost, "{set:?}");
        let is_denied = matches!(&set, Reply::Error(error) if error.starts_with("NOPERM"));
        let denied = learned.failures.iter().filter(|failure| failure.denied.is_some());
        assert_eq!(denied.count(), usize::from(is_denied), "{:?}", learned.failures);
    }
}

#[test]
fn an_unexpected_reply_is_a_protocol_error() {
    for reply in [Reply::Nil, Reply::Text(b"OK".to_vec()), Reply::List(Vec::new())] {
        for replies in [vec![reply.clone(), Reply::Integer(1)], vec![Reply::Integer(1), reply.clone()]] {
            let (_, learned) = learned_from(HOUR, replies);
            assert_eq!(learned.failures[0].kind, failure::FailureKind::ProtocolError, "{reply:?}");
            assert!(learned.expiring.is_empty() || reply != Reply::Nil);
        }
    }
}

#[test]
fn the_longer_of_two_windows_sets_the_expiry_of_their_key() {
    let minute = Expiry { seconds: 60, end: Time::from_seconds(3660), set: Expire::Set };
    let known = Expiry { set: Expire::Known, ..minute };
    for (first, second, expected) in [
        (minute, HOUR, "$4 3600"),
        (HOUR, minute, "$4 3600"),
        (known, HOUR, "$4 3600"),
        (HOUR, known, "$4 3600"),
        (known, minute, "$2 60"),
    ] {
        let mut pipeline = RedisPipeline::default();
        for expiry in [first, second] {
            drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                pipeline.count("a", CounterId::of_name("a"), 1, expiry);
            }));
        }
        let mut bytes = Vec::new();
        pipeline.write(&mut bytes);
        let text = String::from_utf8(bytes).unwrap().replace("\r\n", " ");
        assert!(text.contains(expected), "{first:?} {second:?}: {text}");
        assert_eq!(text.matches("INCRBY").count(), 1);
    }
}

#[test]
fn an_error_reply_fails_only_the_callers_of_its_key() {
    let mut pipeline = RedisPipeline::default();
    let mut good = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("a", CounterId::of_name("a"), 1, HOUR);
    });
    let mut bad = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("b", CounterId::of_name("b"), 1, HOUR);
    });
    let mut moved = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.add_alone(true, |pipeline| pipeline.count("c", CounterId::of_name("c"), 1, HOUR));
    });
    let error = |text: &str| Reply::Error(text.to_owned());
    let replies = vec![
        Reply::Integer(5),
        Reply::Integer(1),
        error("ERR value is not an integer or out of range"),
        Reply::Integer(1),
        Reply::Text(b"OK".to_vec()),
        error("MOVED 7 127.0.0.1:7001"),
        Reply::Integer(1),
    ];
    let learned = pipeline.complete(replies, |kind, error| Failure::new(kind, error));
    assert_eq!(
        learned.failures.iter().map(|failure| failure.kind).collect::<Vec<_>>(),
        [failure::FailureKind::NotANumber, failure::FailureKind::Moved]
    );
    assert_eq!(counts(good.try_recv().unwrap()), [5]);
    assert!(matches!(bad.try_recv().unwrap().unwrap()[..], [CheckResult::Failed(_)]));
    let [CheckResult::Redirected(words)] = &moved.try_recv().unwrap().unwrap()[..] else {
        panic!("not moved")
    };
    assert_eq!(&**words, "MOVED 7 127.0.0.1:7001");
}

#[test]
fn keys_of_a_script_share_a_command_and_equal_arguments() {
    let mut pipeline = RedisPipeline::default();
    let limit = |requests| {
        let minute = Window::of_seconds(60).unwrap();
        Kind::TokenBucket.at(requests, minute, None)
    };
    let call = |pipeline: &mut RedisPipeline, number: usize, slot, algorithm, hits| {
        let key = format!("key {number}");
        drop(pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            pipeline.count_alone(CounterId::of_name(&key), slot, &alone(&key, algorithm, hits));
        }));
    };
    // Each key twice, every tenth with another limit; then other hits than before.
    for number in (0..300).chain(0..300) {
        let requests = if number % 10 == 0 { 9 } else { 5 };
        call(&mut pipeline, number, 0, limit(requests), Hits::Take(1));
    }
    call(&mut pipeline, 7, 0, limit(5), Hits::Take(3));
    // In another slot.
    call(&mut pipeline, 1000, 1, limit(5), Hits::Take(1));
    let mut bytes = Vec::new();
    pipeline.write(&mut bytes);
    let mut commands = Vec::new();
    while let Ok(Some((Reply::List(words), length))) = resp::read(&bytes) {
        bytes.drain(..length);
        let number = |word: &Reply| match word {
            Reply::Text(word) => str::from_utf8(word).unwrap().parse::<usize>().unwrap(),
            other => panic!("{other:?}"),
        };
        let keys = number(&words[2]);
        // After the keys, one word has the index of each key's argument.
        commands.push((keys, words.len() - 3 - keys - 1));
    }
    assert_eq!(commands, [(255, 3), (45, 2), (1, 1)]);
    assert_eq!((pipeline.replies(), pipeline.checks()), (3, 602));
}

#[test]
fn keys_that_cannot_be_counted_together_are_redirected() {
    let mut pipeline = RedisPipeline::default();
    let log = Kind::SlidingLog.at(5, Window::of_seconds(60).unwrap(), None);
    let error = "TRYAGAIN Multiple keys request during rehashing of slot";
    for (keys, is_elsewhere) in [(2, true), (1, false)] {
        let mut received: Vec<_> = ["a", "b"][..keys]
            .iter()
            .map(|key| {
                pipeline.add_caller(Patience::Timeout, None, |pipeline| {
                    pipeline.count_alone(CounterId::of_name(key), 0, &alone(key, log, Hits::Take(1)));
                })
            })
            .collect();
        pipeline.complete(vec![Reply::Error(error.to_owned())], |kind, error| Failure::new(kind, error));
        for received in &mut received {
            let received = received.try_recv().unwrap().unwrap();
            assert_eq!(matches!(received[..], [CheckResult::Redirected(_)]), is_elsewhere, "{received:?}");
        }
        pipeline.clear();
    }
}

fn text(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

fn list(numbers: &[i64]) -> Reply {
    Reply::List(numbers.iter().copied().map(Reply::Integer).collect())
}

fn minute() -> Window {
    Window::of_seconds(60).unwrap()
}

/// The state is of another shape: both callers fail, and the connection closes, since replies may be shifted.
fn assert_refuses_state(kind: Kind, state: &Reply) {
    let algorithm = kind.at(5, minute(), None);
    let mut pipeline = RedisPipeline::default();
    let mut alone = pipeline.add_caller(Patience::Timeout, None, |pipeline| match kind {
        Kind::FixedWindow => pipeline.count_together(CounterId::of_name("a"), &[fixed("a", Hits::Refund(1))]),
        _ => pipeline.count_alone(CounterId::of_name("a"), 0, &alone("a", algorithm, Hits::Take(1))),
    });
    let mut guarded = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count_guarded(
            &[ScriptCheck { uncached: None, ..self::alone("a", algorithm, Hits::Take(1)) }],
            &[0],
        );
    });
    let timed = |states: &[Reply]| Reply::List([states, &[text("7"), text("5")]].concat());
    let over = Reply::List(vec![Reply::Integer(0)]);
    let replies = match kind {
        Kind::FixedWindow => vec![Reply::List(vec![state.clone()]), Reply::List(vec![state.clone(), over])],
        _ => vec![timed(std::slice::from_ref(state)), timed(&[state.clone(), over])],
    };
    let learned = pipeline.complete(replies, |kind, error| Failure::new(kind, error));
    for received in [&mut alone, &mut guarded] {
        let received = received.try_recv().unwrap().unwrap();
        assert!(matches!(received[..], [CheckResult::Failed(_)]), "{kind:?} {state:?}: {received:?}");
    }
    for failure in &learned.failures {
        assert_eq!(failure.kind, failure::FailureKind::ProtocolError, "{kind:?} {state:?}");
    }
    assert_eq!(learned.failures.len(), 2);
}

#[test]
fn a_state_of_another_shape_counts_nothing() {
    for state in [Reply::Nil, Reply::Integer(-1), text("1"), list(&[1])] {
        assert_refuses_state(Kind::FixedWindow, &state);
    }
    for kind in [Kind::SlidingWindow, Kind::TokenBucket] {
        for state in [Reply::Integer(1), text(""), text(&"x".repeat(20)), list(&[1])] {
            assert_refuses_state(kind, &state);
        }
    }
    let of_a_log: [&[i64]; 5] = [&[], &[1], &[1, 2], &[1, 2, -3], &[1, 2, 3, 4]];
    for state in [Reply::Nil, Reply::Integer(1)].into_iter().chain(of_a_log.map(list)) {
        assert_refuses_state(Kind::SlidingLog, &state);
    }
}

/// The reply of a script that counts two limits is of another shape: both fail.
fn assert_refuses_reply(kind: Kind, reply: &Reply) {
    let algorithm = kind.at(5, minute(), None);
    let mut pipeline = RedisPipeline::default();
    let mut received = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        let checks = ["a", "b"].map(|name| alone(name, algorithm, Hits::Take(1)));
        pipeline.count_guarded(&checks, &vec![0; checks.len()]);
    });
    pipeline.complete(vec![reply.clone()], |kind, error| Failure::new(kind, error));
    let received = received.try_recv().unwrap().unwrap();
    assert!(
        matches!(received[..], [CheckResult::Failed(_), CheckResult::Failed(_)]),
        "{reply:?}: {received:?}"
    );
}

#[test]
fn a_reply_of_another_shape_counts_nothing() {
    let count = || Reply::Integer(1);
    let over = || list(&[0, 0, 0]);
    for reply in [
        Reply::Nil,
        Reply::Integer(2),
        list(&[]),
        list(&[1, 1]),
        Reply::List(vec![count(), count(), count()]),
        Reply::List(vec![count(), count(), list(&[0, 0])]),
        Reply::List(vec![count(), count(), list(&[0, -1, 0])]),
        Reply::List(vec![
            count(),
            count(),
            Reply::List(vec![Reply::Nil, Reply::Integer(0), Reply::Integer(0)]),
        ]),
        Reply::List(vec![count(), count(), over(), over()]),
    ] {
        assert_refuses_reply(Kind::FixedWindow, &reply);
    }
    for time in [
        [text("7"), text("x")],
        [text("-7"), text("5")],
        [Reply::Integer(7), Reply::Integer(5)],
        [Reply::Nil, text("5")],
        [text("18446744073709551615"), text("5")],
    ] {
        let reply = Reply::List([&[Reply::Nil, Reply::Nil, over()], &time[..]].concat());
        assert_refuses_reply(Kind::TokenBucket, &reply);
    }
}

#[test]
fn only_a_call_of_an_unknown_script_is_sent_again() {
    let minute = Window::of_seconds(60).unwrap();
    let mut pipeline = RedisPipeline::default();
    let known = Expiry { set: Expire::Known, ..HOUR };
    let mut before = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count("a", CounterId::of_name("a"), 1, known);
    });
    let bucket = Kind::TokenBucket.at(5, minute, None);
    let mut unknown = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.add_alone(true, |pipeline| {
            pipeline.count_alone(CounterId::of_name("b"), 0, &alone("b", bucket, Hits::Take(1)));
        });
    });
    let mut after = pipeline.add_caller(Patience::Timeout, None, |pipeline| {
        pipeline.count_together(CounterId::of_name("c"), &[fixed("c", Hits::Refund(1))]);
    });
    let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
    let no_script = Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
    let mut replies = vec![Reply::Integer(1), text("OK"), no_script, Reply::List(vec![Reply::Integer(3)])];
    let calls = pipeline.unknown_scripts(&replies);
    let indexes: Vec<_> = calls.iter().flat_map(|call| call.replies.clone()).collect();
    assert_eq!(indexes, [1, 2]);
    let mut again = Vec::new();
    pipeline.write_with_scripts(&calls, &mut again);
    let written = String::from_utf8_lossy(&again);
    assert!(written.starts_with("*1\r\n$6\r\nASKING\r\n"), "{written}");
    assert_eq!((written.matches("EVAL\r\n").count(), written.matches("\r\nINCRBY\r\n").count()), (1, 0));
    // The server knows a script after its first call.
    let twice = [pipeline.unknown_scripts(&replies), calls].map(Vec::into_iter);
    again.clear();
    pipeline.write_with_scripts(&twice.into_iter().flatten().collect::<Vec<_>>(), &mut again);
    let written = String::from_utf8_lossy(&again);
    assert_eq!((written.matches("EVAL\r\n").count(), written.matches("EVALSHA\r\n").count()), (1, 1));
    replies.splice(1..3, [text("OK"), Reply::List(vec![Reply::Nil, text("7"), text("5")])]);
    let learned = pipeline.complete(replies, |kind, error| Failure::new(kind, error));
    assert!(learned.failures.is_empty(), "{:?}", learned.failures);
    assert_eq!((counts(before.try_recv().unwrap()), counts(after.try_recv().unwrap())), (vec![1], vec![2]));
    let unknown = unknown.try_recv().unwrap().unwrap();
    assert!(
        matches!(&unknown[..], [CheckResult::Counted(Counted::Decided(verdict))] if verdict.admitted),
        "{unknown:?}"
    );
}
