//! `POST /api/v1/try`: what rules would have made of the last recorded requests. Nothing changes.
//!
//! The rules are compiled, and the requests replayed, on a thread of their own, one trial at a time, with the rules in force
//! beside the new ones. A reload waits for its end: there is memory for one set of rules more.

use std::{collections::HashSet, sync::Arc};

use http::StatusCode;

use super::{
    Api,
    reply::{Call, Problem, Reply},
};
use api::{Recorded, Trial, TryRules};
use limiter::{Policy, RecentRequests, Recording, Served};
use overrides::Index;
use replay::{Decider, Failed, Log, Replay, Report};
use rules::{CompileOptions, RuleSet, SourceFile, compile};

/// What a trial needs of the service.
pub struct Trials {
    pub requests: Arc<RecentRequests>,
    pub policy: Policy,
    /// The size of the over-limit cache.
    pub cache_bytes: usize,
}

/// The name of the rules in messages.
const FILE: &str = "rules";

const MAX_MISTAKES: usize = 20;

/// The peak of a trial, measured: of its thread and tables, for a byte of the new rules' text, and for a rule in force.
const TRIAL: usize = 6 << 20;
const TEXT: usize = 32;
const RULE: usize = 2_000;

pub(super) async fn post(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let TryRules { rules } = call.json()?;
    let limit = memory_limit(api);
    let options = api.managed.source.options();
    let overrides = api.managed.keeper.index().clone();
    let compared = compare(api, move |served, decider| {
        let in_force = &served.rules;
        check_room(rules.len(), in_force, limit)?;
        let mut tried = vec![SourceFile { name: FILE.to_owned(), text: rules.into_bytes() }];
        let mut new = read(&tried, options)?;
        if options.merge_domains && !served.files.is_empty() {
            add_others(&mut tried, &new, in_force, served.files.clone());
            // One set at a time.
            drop(new);
            check_room(tried.iter().map(|file| file.text.len()).sum(), in_force, limit)?;
            new = read(&tried, options)?;
        }
        drop(tried);
        let domains: Vec<Box<str>> = new.domains().map(|domain| domain.name.clone()).collect();
        Ok([
            decider(new, overrides.clone()).on_domains(domains),
            decider(RuleSet::clone(in_force), overrides),
        ])
    });
    let (report, recorded) = compared.await?;
    let refused_now = report.refused - report.newly_refused + report.newly_allowed;
    Reply::json(api, &Trial { refused_now, recorded, report })
}

type MakeDecider<'a> = &'a dyn Fn(RuleSet, Arc<Index>) -> Decider;

/// Replays what was recorded on two sides that `make` makes of the rules in force.
pub(super) async fn compare(
    api: &Api,
    make: impl FnOnce(&Served, MakeDecider<'_>) -> Result<[Decider; 2], Problem> + Send + 'static,
) -> Result<(Report, Recorded), Problem> {
    let Some(trials) = &api.managed.trials else {
        let message = "no requests are recorded: set RECENT_REQUESTS_MAX_BYTES above 0, and KEY_VALUES to plain or hashed";
        return Err(Problem::new(StatusCode::CONFLICT, message));
    };
    let Ok(turn) = api.trial.clone().try_lock_owned() else {
        let message = "another trial is under way; try again when it has ended";
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, message));
    };
    let policy = trials.policy.clone();
    let cache_bytes = trials.cache_bytes;
    let recording = trials.requests.recording();
    let recorded = Recorded { share_of_keys: recording.rate, bytes: trials.requests.bytes() };
    let source = api.managed.source.clone();
    let replayed = tokio::task::spawn_blocking(move || {
        // A caller that goes away does not end the replay.
        let _turn = turn;
        source.between_reloads(|| {
            let Some(served) = source.current() else {
                return Err(Problem::new(
                    StatusCode::CONFLICT,
                    "there are no rules in force to compare with",
                ));
            };
            let decider = |rules, overrides| Decider::new(rules, policy.clone(), overrides, cache_bytes);
            let [new, now] = make(&served, &decider)?;
            replayed(recording, new, now)
        })
    });
    let report = replayed.await.map_err(|_| failed("the replay panicked; the log has the place"))??;
    Ok((report, recorded))
}

pub(super) fn memory_limit(api: &Api) -> usize {
    (api.managed.memory)().map_or(usize::MAX, |(limit, ..)| limit)
}

/// Fails if the trial could take more than nine tenths of the memory, beside all that is in it now.
pub(super) fn check_room(text: usize, in_force: &RuleSet, limit: usize) -> Result<(), Problem> {
    let rules = in_force.rule_count() as usize;
    let needed = TRIAL.saturating_add(TEXT.saturating_mul(text)).saturating_add(RULE.saturating_mul(rules));
    let used = allocator::resident_bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or_default();
    let free = (limit / 10).saturating_mul(9).saturating_sub(used);
    if needed <= free {
        return Ok(());
    }
    let [needed, free, limit] = [needed, free, limit].map(|bytes| bytes >> 20);
    let message = format!(
        "the trial needs about {needed} MiB, and {free} of {limit} (MEMORY_LIMIT) are free; try fewer rules, raise the \
         limit, or use `tollgate replay` on another machine"
    );
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message))
}

fn failed(message: &str) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// Adds the other files of the domains that are tried: those that have none of their descriptors. A file that has some is the
/// one that is tried.
fn add_others(tried: &mut Vec<SourceFile>, new: &RuleSet, in_force: &RuleSet, mut files: Vec<SourceFile>) {
    let mut of_domain = HashSet::new();
    let mut replaced = HashSet::new();
    for domain in new.domains() {
        let before = in_force.domain(&domain.name).map(|domain| domain.root.in_order());
        for (_, node) in before.unwrap_or_default() {
            let Some((file, _)) = in_force.origin(node) else { continue };
            of_domain.insert(file);
            if domain.root.named(&node.text).is_some() {
                replaced.insert(file);
            }
        }
    }
    // Wildcards are tried in the order of the files.
    let place = files.iter().position(|file| replaced.contains(&*file.name)).unwrap_or(files.len());
    let behind = files.split_off(place);
    let is_other = |file: &SourceFile| of_domain.contains(&*file.name) && !replaced.contains(&*file.name);
    tried.splice(0..0, files.into_iter().filter(is_other));
    tried.extend(behind.into_iter().filter(is_other));
}

fn read(files: &[SourceFile], options: CompileOptions) -> Result<RuleSet, Problem> {
    let compiled = compile(files, options);
    compiled.rules.filter(|rules| !rules.is_empty()).ok_or_else(|| {
        let errors = compiled.diagnostics.iter().filter(|one| one.is_error());
        let mut lines: Vec<String> = errors.map(ToString::to_string).collect();
        let more = lines.len().saturating_sub(MAX_MISTAKES);
        lines.truncate(MAX_MISTAKES);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        if lines.is_empty() {
            lines.push(
                "the rules have no domain; expected a rules file, which begins with `domain: …`".to_owned(),
            );
        }
        Problem::bad_request(lines.join("\n"))
    })
}

fn replayed(recording: Recording, rules: Decider, now: Decider) -> Result<Report, Problem> {
    let replay = Replay {
        logs: vec![Log { name: "recorded".to_owned(), bytes: Box::new(recording) }],
        access_log: None,
        rules,
        against: Some(now),
        from: None,
        to: None,
        suggest: None,
    };
    replay.run(&mut |_| {}).map_err(|error| match error {
        Failed::Unreadable(error) => failed(&error.to_string()),
        Failed::System(error) => failed(&format!("the system denies a thread: {error}")),
        Failed::TooManyKeys => failed("more keys are counted at one time than fit into memory"),
    })
}
