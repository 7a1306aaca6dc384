//! The bytes of pipelines, and the outcomes of replies.

use proptest::prelude::*;

use super::*;
use tokio::sync::oneshot;

use crate::reply::Text;
use counters::StoreError;
use metrics::FailureReason;
use wire::framed::Codec;
use wire::{self as remote, Patience};

type Answered = remote::Answered<CheckResult>;

/// A pipeline with these checks of each caller, and the pending outcomes.
fn pipeline(callers: &[&[(&str, Hits)]]) -> (MemcachedPipeline, Vec<oneshot::Receiver<Answered>>) {
    let mut pipeline = MemcachedPipeline::default();
    let add_caller = |checks: &&[(&str, Hits)]| {
        pipeline.add_caller(Patience::Timeout, None, |pipeline| {
            checks.iter().for_each(|(key, hits)| pipeline.add(key, *hits, 61));
        })
    };
    let received = callers.iter().map(add_caller).collect();
    (pipeline, received)
}

fn written(pipeline: &MemcachedPipeline) -> String {
    let mut bytes = Vec::new();
    pipeline.write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

/// The outcomes of each caller after these replies.
fn completed(
    mut pipeline: MemcachedPipeline,
    received: Vec<oneshot::Receiver<Answered>>,
    replies: Vec<Reply>,
) -> Vec<Vec<Result<u64, FailureKind>>> {
    pipeline.complete(replies, |kind, error| Failure::new(kind, error));
    let outcomes = received.into_iter().map(|mut received| received.try_recv().unwrap().unwrap());
    outcomes
        .map(|outcomes| outcomes.into_iter().map(|one| one.map_err(|failure| failure.kind)).collect())
        .collect()
}

const READ: Hits = Hits::Take(0);

#[test]
fn hits_on_one_key_share_a_command_and_count_in_order() {
    let (pipeline, received) = pipeline(&[
        &[("a", Hits::Take(2)), ("b", Hits::Take(1))],
        &[("a", Hits::Take(3)), ("a", READ)],
        &[("c", READ)],
    ]);
    assert_eq!(written(&pipeline), "incr a 5\r\nincr b 1\r\nget c\r\n");
    assert_eq!(pipeline.checks(), 5);
    let replies = vec![Reply::Number(15), Reply::Number(1), Reply::Value(b"7 ".to_vec())];
    assert_eq!(pipeline.missing(&replies), [0_u32; 0]);
    let seen = completed(pipeline, received, replies);
    assert_eq!(seen, [vec![Ok(12), Ok(1)], vec![Ok(15), Ok(15)], vec![Ok(7)]]);
}

#[test]
fn hits_after_a_refund_are_counted_after_it() {
    let (pipeline, received) =
        pipeline(&[&[("a", Hits::Take(2))], &[("a", Hits::Refund(9))], &[("a", Hits::Take(1))]]);
    assert_eq!(written(&pipeline), "incr a 2\r\ndecr a 9\r\nincr a 1\r\n");
    let seen = completed(pipeline, received, [7, 0, 1].map(Reply::Number).into());
    assert_eq!(seen, [vec![Ok(7)], vec![Ok(0)], vec![Ok(1)]]);
}

#[test]
fn a_command_adds_at_most_the_most_and_large_counters_are_reduced() {
    let huge = Hits::Take(u64::MAX);
    let (pipeline, received) = pipeline(&[&[("a", huge)], &[("a", huge)], &[("a", Hits::Take(1))]]);
    let most = 1_u64 << 53;
    assert_eq!(written(&pipeline), format!("incr a {most}\r\nincr a {most}\r\nincr a 1\r\n"));
    let replies = vec![Reply::Number(TOO_LARGE - 1), Reply::Number(TOO_LARGE), Reply::Number(7)];
    assert_eq!(pipeline.too_large(&replies).collect::<Vec<_>>(), [b"a"]);
    let mut next = MemcachedPipeline::default();
    next.reduce("a");
    assert_eq!(written(&next), format!("decr a {}\r\n", 1_u64 << 56));
    let seen = completed(pipeline, received, replies);
    let before = TOO_LARGE - most;
    assert_eq!(seen, [vec![Ok(before - 1 + TOO_LARGE)], vec![Ok(before + TOO_LARGE)], vec![Ok(7)]]);
}

#[test]
fn missing_counters_are_created_and_counted_again() {
    let (pipeline, received) = pipeline(&[
        &[("a", Hits::Take(2)), ("b", Hits::Take(1))],
        &[("a", Hits::Refund(1)), ("c", READ), ("a", READ)],
    ]);
    let replies = [Reply::Missing, Reply::Number(4), Reply::Missing, Reply::Missing, Reply::Missing];
    let missing = pipeline.missing(&replies);
    assert_eq!(missing, [0, 2, 3, 4]);
    let mut again = Vec::new();
    pipeline.write_again(&missing, &mut again);
    let again = String::from_utf8(again).unwrap();
    assert_eq!(again, "add a 0 61 1\r\n0\r\nincr a 2\r\ndecr a 1\r\nget c\r\nget a\r\n");
    let number = Reply::Number;
    let replies = vec![number(2), number(4), number(1), Reply::Missing, Reply::Value(b"1".to_vec())];
    assert_eq!(completed(pipeline, received, replies), [vec![Ok(2), Ok(4)], vec![Ok(1), Ok(0), Ok(1)]]);
}

#[test]
fn reads_and_refunds_create_no_counter() {
    let (pipeline, received) = pipeline(&[&[("a", READ), ("b", Hits::Refund(1))]]);
    let replies = vec![Reply::Missing, Reply::Missing];
    assert_eq!(pipeline.missing(&replies), [0_u32; 0]);
    assert_eq!(completed(pipeline, received, replies), [vec![Ok(0), Ok(0)]]);
}

#[test]
fn an_invalid_counter_fails_only_its_callers() {
    let (pipeline, received) = pipeline(&[&[("a", READ)], &[("b", Hits::Take(1))], &[("c", Hits::Take(1))]]);
    let replies = vec![
        Reply::Value(b"x".to_vec()),
        Reply::Error("CLIENT_ERROR cannot increment or decrement non-numeric value".to_owned()),
        Reply::Number(3),
    ];
    let seen = completed(pipeline, received, replies);
    assert_eq!(seen, [vec![Err(FailureKind::NotANumber)], vec![Err(FailureKind::NotANumber)], vec![Ok(3)]]);
}

#[test]
fn every_caller_receives_the_error_of_a_lost_pipeline() {
    let (mut pipeline, received) = pipeline(&[&[("a", READ)], &[("b", READ)]]);
    let error = StoreError { reason: FailureReason::Timeout, message: "late".into() };
    pipeline.callers_mut().fail(&error);
    for mut received in received {
        assert_eq!(received.try_recv().unwrap().unwrap_err(), error);
    }
}

#[test]
fn a_cleared_pipeline_is_empty() {
    let (mut pipeline, _) = pipeline(&[&[("a", Hits::Take(1))]]);
    pipeline.clear();
    assert_eq!((written(&pipeline), pipeline.checks()), (String::new(), 0));
    let mut received =
        pipeline.add_caller(Patience::Timeout, None, |pipeline| pipeline.add("a", Hits::Take(1), 61));
    assert_eq!(written(&pipeline), "incr a 1\r\n");
    pipeline.complete(vec![Reply::Number(9)], |kind, error| Failure::new(kind, error));
    assert_eq!(received.try_recv().unwrap().unwrap()[0].as_ref().ok(), Some(&9));
}

/// A memcached without expiries.
#[derive(Default)]
struct Model(std::collections::BTreeMap<String, u64>);

impl Model {
    /// The replies to these commands.
    fn serve(&mut self, text: &str) -> String {
        let mut lines = text.lines();
        let mut replies = String::new();
        while let Some(line) = lines.next() {
            let words: Vec<_> = line.split(' ').collect();
            let key = words[1].to_owned();
            let held = self.0.get_mut(&key);
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let reply = match (words[0], held) {
                ("get", None) => "END\r\n".to_owned(),
                ("get", Some(held)) => {
                    format!("VALUE {key} 0 {}\r\n{held}\r\nEND\r\n", held.to_string().len())
                }
                ("add", held) => {
                    let value = lines.next().unwrap().parse().unwrap();
                    let exists = held.is_some();
                    self.0.entry(key).or_insert(value);
                    if exists { "NOT_STORED\r\n" } else { "STORED\r\n" }.to_owned()
                }
                (_, None) => "NOT_FOUND\r\n".to_owned(),
                (command, Some(held)) => {
                    *held =
                        if command == "incr" { *held + number(2) } else { held.saturating_sub(number(2)) };
                    format!("{held}\r\n")
                }
            };
            replies.push_str(&reply);
        }
        replies
    }

    /// The replies to the written commands, without those to `add`.
    fn replies(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> Vec<Reply> {
        let mut bytes = Vec::new();
        let count = write(&mut bytes);
        let sent = self.serve(str::from_utf8(&bytes).unwrap());
        let (mut replies, mut rest) = (Vec::new(), sent.as_bytes());
        while let Some((reply, length)) = Text::decode(rest).unwrap() {
            rest = &rest[length..];
            replies.push(reply);
        }
        assert_eq!(replies.len(), count);
        replies.retain(|reply| !matches!(reply, Reply::Stored | Reply::NotStored));
        replies
    }
}

fn hits() -> impl Strategy<Value = Hits> {
    prop_oneof![4 => (0..5_u64).prop_map(Hits::Take), 1 => (1..5_u64).prop_map(Hits::Refund)]
}

proptest! {
    #[test]
    fn checks_of_one_pipeline_have_the_outcomes_they_would_have_alone(
        pipelines in prop::collection::vec(
            prop::collection::vec(prop::collection::vec((0..4_usize, hits()), 1..4), 1..5), 1..5),
    ) {
        let keys = ["a", "b", "c", "d"];
        let mut server = Model::default();
        let mut counts = [0_u64; 4];
        for callers in pipelines {
            let named: Vec<Vec<_>> = callers
                .iter()
                .map(|checks| checks.iter().map(|(key, hits)| (keys[*key], *hits)).collect())
                .collect();
            let (pipeline, received) = pipeline(&named.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut replies = server.replies(|into| pipeline.write(into));
            let missing = pipeline.missing(&replies);
            let again = server.replies(|into| pipeline.write_again(&missing, into));
            for (index, reply) in missing.into_iter().zip(again) {
                replies[index as usize] = reply;
            }
            let seen = completed(pipeline, received, replies);
            for (checks, seen) in callers.iter().zip(seen) {
                for ((key, hits), seen) in checks.iter().zip(seen) {
                    counts[*key] = fixed_window::count(counts[*key], *hits);
                    prop_assert_eq!(seen, Ok(counts[*key]));
                }
            }
        }
    }
}
