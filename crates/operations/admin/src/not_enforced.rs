//! Whether limits are enforced, and what keeps them from it, in sentences: `enforced` and `not_enforced` of the status, and
//! `tollgate_not_enforced`.
//!
//! Each replica finds its own reasons once a second and publishes them with its summary; the status shows those of all.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
};

use super::{Api, domains, overrides::shown_target};
use ::overrides::{Action, EVERY_DOMAIN, Override, model::timestamp};
use api::{Change, NotEnforced, Replica};
use clock::{Rfc3339, Time};
use faults::{OnStoreFailure, mutex::lock};
use fleet::changes::MAX_KEPT;
use metrics::{DomainRequests, FailureReason, LENIENT, Stats, UNKNOWN_DOMAIN};

/// Samples are taken every ten seconds of a minute.
const SAMPLE_SECONDS: u64 = 10;
const WINDOW_SECONDS: u64 = 60;

/// A share of unmatched requests is shown from half of them on, if there are at least as many a minute.
const MIN_REQUESTS: u64 = 20;

/// The most domains with a reason in the metrics.
const MAX_SERIES: usize = 200;

text::named! {
    #[derive(PartialOrd, Ord)]
    enum Why {
        DomainAllow = "domain_allow",
        DomainShadow = "domain_shadow",
        ShadowMode = "shadow_mode",
        RuleShadow = "rule_shadow",
        RulesMissing = "rules_missing",
        RulesRejected = "rules_rejected",
        StoreFailure = "store_failure",
        Unmatched = "unmatched",
        /// Seen where the replicas are known, so not by one replica alone.
        OtherRules = "other_rules",
    }
}

impl Why {
    fn is_chosen(self) -> bool {
        matches!(self, Self::DomainAllow | Self::DomainShadow | Self::ShadowMode | Self::RuleShadow)
    }
}

#[derive(Default)]
pub(super) struct Watch(Mutex<Samples>);

#[derive(Default)]
struct Samples {
    /// The oldest first.
    kept: VecDeque<Sample>,
    has_begun: bool,
    current: Vec<NotEnforced>,
}

struct Sample {
    time: Time,
    domains: BTreeMap<Box<str>, DomainRequests>,
    failures: Failures,
}

/// Store failures by policy, in the order of [`LENIENT`], and reason.
type Failures = [[u64; FailureReason::ALL.len()]; LENIENT.len()];

impl Sample {
    fn take(stats: &Stats, time: Time) -> Self {
        let by_reason =
            |policy| FailureReason::ALL.map(|reason| stats.service().store_failures(policy, reason).get());
        Self { time, domains: stats.requests_by_domain(), failures: LENIENT.map(by_reason) }
    }
}

impl Watch {
    pub(super) fn current(&self) -> Vec<NotEnforced> {
        lock(&self.0).current.clone()
    }
}

impl Api {
    /// Finds the reasons of this replica; called once a second.
    pub(super) async fn watch_enforcement(&self, now: Time) {
        let switches = self.switches(now);
        let sample = Sample::take(&self.managed.stats, now);
        let (mut found, known) = {
            let mut seen = lock(&self.not_enforced.0);
            (seen.of_the_last_minute(sample), seen.current.clone())
        };
        found.extend(self.configured());
        for one in &mut found {
            one.since = since(&known, one).unwrap_or_else(|| Rfc3339(now).to_string());
        }
        for (switch, mut one) in switches {
            one.since = match since(&known, &one) {
                Some(since) => since,
                None => self.set_at(&switch).await.unwrap_or_else(|| Rfc3339(now).to_string()),
            };
            found.push(one);
        }
        // With the policy `local` each replica enforces limits by itself.
        let lifted = found.iter().filter(|one| one.policy.as_deref() != Some(OnStoreFailure::Local.name()));
        let mut series: Vec<_> = lifted.map(|one| [one.domain.clone(), one.why.clone()]).collect();
        series.sort_unstable();
        series.dedup();
        series.truncate(MAX_SERIES);
        self.managed.stats.set_not_enforced(series);
        lock(&self.not_enforced.0).current = found;
    }

    /// The switches that allow or shadow the requests of a domain.
    fn switches(&self, now: Time) -> Vec<(Arc<Override>, NotEnforced)> {
        let index = self.managed.keeper.index();
        let not_enforced = |(switch, is_here): (Arc<Override>, bool)| {
            let why = match switch.action {
                Action::Allow => Why::DomainAllow,
                Action::Shadow => Why::DomainShadow,
                Action::Limit { .. } | Action::Block | Action::Scale(_) | Action::OnStoreFailure(_) => {
                    return None;
                }
            };
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let reported = NotEnforced {
                alone: is_here,
                until: switch.expires.map(timestamp),
                by: text(&switch.by),
                reason: text(&switch.reason),
                ..new(why, switch.target.domain())
            };
            Some((switch, reported))
        };
        domains::in_force(index, index.time(now)).into_iter().filter_map(not_enforced).collect()
    }

    /// When a switch was set, by the log of changes.
    async fn set_at(&self, switch: &Override) -> Option<String> {
        let (changes, _) = self.managed.fleet.read_changes(MAX_KEPT).await;
        let what = format!("{}, {}", shown_target(self, &switch.target), switch.effect());
        let is_it = |change: &Change| change.action == "domain_set" && change.what.starts_with(&what);
        changes.into_iter().find(is_it).map(|change| change.time)
    }

    /// What settings and rules say, and rules that are not in force.
    fn configured(&self) -> Vec<NotEnforced> {
        let state = self.managed.source.state();
        let mut found = Vec::new();
        if self.managed.limiter.policy().shadow_mode {
            found.push(new(Why::ShadowMode, EVERY_DOMAIN));
        }
        let error = state.last_error.as_ref().and_then(|(_, errors)| errors.first());
        let reason = error.map(ToString::to_string);
        if state.last_success.is_none() {
            found.push(NotEnforced { reason, ..new(Why::RulesMissing, EVERY_DOMAIN) });
        } else if !state.is_current {
            found.push(NotEnforced { reason, ..new(Why::RulesRejected, EVERY_DOMAIN) });
        }
        let served = self.managed.source.current();
        for domain in served.iter().flat_map(|served| served.rules.domains()) {
            let rules = domain.rules();
            let limits = || rules.iter().filter(|(rule, _)| rule.limits().is_some());
            let shadow = limits().filter(|(rule, _)| rule.shadow_mode).count() as u64;
            if shadow > 0 {
                let of = limits().count() as u64;
                found.push(NotEnforced { n: shadow, of, ..new(Why::RuleShadow, &domain.name) });
            }
        }
        found
    }
}

text::named! {
    pub(super) enum Enforced {
        Yes = "yes",
        Partly = "partly",
        No = "no",
    }
}

impl Enforced {
    /// The verdict on these reasons, and on the policies that decide while the store is out of service: none while it works.
    pub(super) fn of(reasons: &[NotEnforced], deciding: &[OnStoreFailure]) -> Self {
        const NOTHING: [Why; 4] = [Why::DomainAllow, Why::DomainShadow, Why::ShadowMode, Why::RulesMissing];
        let of_all = |one: &NotEnforced| {
            let names = NOTHING.map(Why::name);
            one.domain == EVERY_DOMAIN && !one.alone && names.contains(&one.why.as_str())
        };
        let is_open =
            |policy: &OnStoreFailure| matches!(policy, OnStoreFailure::Allow | OnStoreFailure::Error);
        let refuses = |policy: &OnStoreFailure| *policy == OnStoreFailure::Deny;
        if reasons.iter().any(of_all) || (!deciding.is_empty() && deciding.iter().all(is_open)) {
            Self::No
        } else if reasons.is_empty() && deciding.iter().all(refuses) {
            Self::Yes
        } else {
            Self::Partly
        }
    }
}

fn new(why: Why, domain: &str) -> NotEnforced {
    NotEnforced {
        domain: domain.to_owned(),
        why: why.name().to_owned(),
        chosen: why.is_chosen(),
        replicas: 1,
        ..NotEnforced::default()
    }
}

/// Since when a reason is known.
fn since(known: &[NotEnforced], one: &NotEnforced) -> Option<String> {
    let is_same = |known: &&NotEnforced| {
        (&known.domain, &known.why, &known.policy, known.alone, &known.by)
            == (&one.domain, &one.why, &one.policy, one.alone, &one.by)
    };
    known.iter().find(is_same).map(|known| known.since.clone())
}

impl Samples {
    /// Store failures, and requests that meet no rule, since the oldest sample.
    fn of_the_last_minute(&mut self, now: Sample) -> Vec<NotEnforced> {
        if !self.has_begun {
            self.has_begun = true;
            // Counters begin at 0, so all that the first sample has is of the last minute.
            let begin = Sample { time: now.time, domains: BTreeMap::new(), failures: Failures::default() };
            self.kept.push_back(begin);
        }
        let is_old = |sample: &Sample| {
            // Also one that is later, by a clock that was set back.
            !(0..=WINDOW_SECONDS * 1_000_000).contains(&now.time.micros().wrapping_sub(sample.time.micros()))
        };
        self.kept.retain(|sample| !is_old(sample));
        let found = self.kept.front().map(|first| between(first, &now)).unwrap_or_default();
        let is_due = |last: &Sample| now.time.seconds() >= last.time.seconds() + SAMPLE_SECONDS;
        if self.kept.back().is_none_or(is_due) {
            self.kept.push_back(now);
        }
        found
    }
}

fn between(before: &Sample, now: &Sample) -> Vec<NotEnforced> {
    let since = |name: &str, now: &DomainRequests| {
        let before = before.domains.get(name).copied().unwrap_or_default();
        let mut left = DomainRequests {
            all: now.all.saturating_sub(before.all),
            unmatched: now.unmatched.saturating_sub(before.unmatched),
            without_store: now.without_store,
        };
        for (n, before) in left.without_store.iter_mut().zip(before.without_store) {
            *n = n.saturating_sub(before);
        }
        left
    };
    let domains: Vec<_> =
        now.domains.iter().map(|(name, requests)| (&**name, since(name, requests))).collect();
    let all = domains.iter().fold(0, |sum: u64, (_, requests)| sum.saturating_add(requests.all));
    let mut found = Vec::new();
    for (name, requests) in domains {
        let failures = before.failures.iter().zip(&now.failures);
        let policies = LENIENT.into_iter().zip(requests.without_store).zip(failures);
        for ((policy, n), (before, now)) in policies.filter(|((_, n), _)| *n > 0) {
            let reasons = FailureReason::ALL.into_iter().zip(before.iter().zip(now));
            let most = reasons.max_by_key(|(_, (before, now))| now.saturating_sub(**before));
            found.push(NotEnforced {
                policy: Some(policy.name().to_owned()),
                reason: most.map(|(reason, _)| reason.name().replace('_', " ")),
                n,
                of: requests.all,
                ..new(Why::StoreFailure, name)
            });
        }
        let of = if name == UNKNOWN_DOMAIN { all } else { requests.all };
        if of >= MIN_REQUESTS && requests.unmatched >= of.div_ceil(2) {
            found.push(NotEnforced { n: requests.unmatched, of, ..new(Why::Unmatched, name) });
        }
    }
    found
}

/// The reasons as the status has them: first what nobody chose. `replicas` are those of the status.
pub(super) fn shown(all: &[NotEnforced], replicas: &[Replica]) -> Vec<NotEnforced> {
    let hashes: HashSet<_> = replicas.iter().map(|replica| &replica.rules_hash).collect();
    let other = (hashes.len() > 1)
        .then(|| NotEnforced { n: hashes.len() as u64, ..new(Why::OtherRules, EVERY_DOMAIN) });
    let all =
        other.iter().chain(all.iter().filter(|one| !one.chosen)).chain(all.iter().filter(|one| one.chosen));
    all.map(|one| NotEnforced { text: sentence(one, replicas.len()), ..one.clone() }).collect()
}

/// A reason of some of this many replicas.
fn sentence(one: &NotEnforced, known: usize) -> String {
    let NotEnforced { domain, n, of, .. } = one;
    let whose = match domain.as_str() {
        EVERY_DOMAIN => "all domains",
        UNKNOWN_DOMAIN => "domains without rules",
        domain => domain,
    };
    let reason = one.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let switched = |effect: &str| {
        let until = one.until.as_deref().map(|until| format!(" until {until}")).unwrap_or_default();
        let by = one.by.as_deref().map(|by| format!(" by {by}")).unwrap_or_default();
        let on = match (one.alone, one.replicas) {
            (false, _) => String::new(),
            (true, 1) => " on one replica".to_owned(),
            (true, replicas) => format!(" on {replicas} replicas"),
        };
        format!("{effect}{on}, switched at {}{by}{until}{reason}", one.since)
    };
    let why = Why::ALL.into_iter().find(|why| why.name() == one.why);
    let what = match why {
        Some(Why::DomainAllow) => switched("no limit is in force"),
        Some(Why::DomainShadow) => switched("limits refuse nothing"),
        Some(Why::ShadowMode) => "limits refuse nothing: SHADOW_MODE is true".to_owned(),
        Some(Why::RuleShadow) if n == of => "limits refuse nothing: every rule is in shadow mode".to_owned(),
        Some(Why::RuleShadow) => format!("{n} of {of} rules refuse nothing: they are in shadow mode"),
        Some(Why::RulesMissing) => format!("no rules are loaded, so every request fails{reason}"),
        Some(Why::RulesRejected) if known > 1 => {
            format!("newer rules were rejected by {} of {known} replicas{reason}", one.replicas)
        }
        Some(Why::RulesRejected) => format!("newer rules were rejected{reason}"),
        Some(Why::StoreFailure) => {
            let effect = match one.policy.as_deref() {
                Some("error") => "failed, and Envoy lets them through unless failure_mode_deny",
                Some("local") => "were counted by each replica alone",
                _ => "were allowed without counting",
            };
            format!("{n} of {of} requests of the last minute {effect}, because the store failed{reason}")
        }
        Some(Why::Unmatched) => {
            format!("{n} of {of} requests of the last minute meet no rule: tollgate top --unmatched")
        }
        Some(Why::OtherRules) => format!("replicas serve {n} different sets of rules"),
        // Of a newer version.
        None => one.why.replace('_', " "),
    };
    format!("{whose}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64, domains: &[(&str, DomainRequests)], timeouts: u64) -> Sample {
        let mut failures = Failures::default();
        failures[2][FailureReason::Timeout as usize] = timeouts;
        let domains = domains.iter().map(|(name, requests)| ((*name).into(), *requests)).collect();
        Sample { time: Time::from_seconds(second), domains, failures }
    }

    fn requests(all: u64, unmatched: u64, locally: u64) -> DomainRequests {
        DomainRequests { all, unmatched, without_store: [0, 0, locally] }
    }

    fn texts(found: &[NotEnforced]) -> Vec<String> {
        found.iter().map(|one| sentence(one, 1)).collect()
    }

    #[test]
    fn failures_and_unmatched_requests_are_those_of_the_last_minute() {
        let mut seen = Samples { has_begun: true, ..Samples::default() };
        assert_eq!(seen.of_the_last_minute(sample(100, &[("shop", requests(10, 10, 10))], 10)), []);
        let now = [("shop", requests(50, 10, 12)), (UNKNOWN_DOMAIN, requests(39, 39, 0))];
        let found = seen.of_the_last_minute(sample(101, &now, 12));
        let local = "shop: 2 of 40 requests of the last minute were counted by each replica alone, because the store failed: timeout";
        assert_eq!(texts(&found), [local], "39 of 79 requests are less than half");
        let now = [("shop", requests(50, 10, 12)), (UNKNOWN_DOMAIN, requests(40, 40, 0))];
        let found = seen.of_the_last_minute(sample(102, &now, 12));
        let unmatched = "domains without rules: 40 of 80 requests of the last minute meet no rule: tollgate top --unmatched";
        assert_eq!(texts(&found), [unmatched, local]);
        for second in 103..=160 {
            assert_eq!(seen.of_the_last_minute(sample(second, &now, 12)).len(), 2, "{second}");
        }
        assert!(seen.kept.len() <= 7, "{}", seen.kept.len());
        // The samples of the seconds 101 to 109 were not kept.
        assert_eq!(seen.of_the_last_minute(sample(171, &now, 12)), []);
        assert_eq!(seen.of_the_last_minute(sample(90, &now, 12)), [], "the clock was set back");
    }

    #[test]
    fn failures_of_the_first_second_are_of_the_last_minute() {
        let mut seen = Samples::default();
        let now = [("shop", requests(10, 0, 10))];
        for second in 100..=160 {
            assert_eq!(seen.of_the_last_minute(sample(second, &now, 10)).len(), 1, "{second}");
        }
        assert_eq!(seen.of_the_last_minute(sample(161, &now, 10)), []);
    }

    #[test]
    fn limits_are_enforced_partly_or_not_by_what_is_wrong() {
        use OnStoreFailure::{Allow, Deny, Error, Local, Share};
        let verdict =
            |reasons: &[NotEnforced], deciding: &[OnStoreFailure]| Enforced::of(reasons, deciding).name();
        assert_eq!(verdict(&[], &[]), "yes");
        assert_eq!(verdict(&[new(Why::ShadowMode, EVERY_DOMAIN)], &[]), "no");
        assert_eq!(verdict(&[new(Why::RulesMissing, EVERY_DOMAIN)], &[]), "no");
        assert_eq!(verdict(&[new(Why::DomainAllow, "shop")], &[]), "partly");
        assert_eq!(
            verdict(&[new(Why::RulesRejected, EVERY_DOMAIN)], &[]),
            "partly",
            "older rules are in force"
        );
        let here = NotEnforced { alone: true, ..new(Why::DomainAllow, EVERY_DOMAIN) };
        assert_eq!(verdict(&[here], &[]), "partly", "others enforce them");
        for (deciding, expected) in [
            (vec![Deny], "yes"),
            (vec![Allow], "no"),
            (vec![Error, Allow], "no"),
            (vec![Local], "partly"),
            (vec![Share, Deny], "partly"),
            (vec![Error, Deny], "partly"),
        ] {
            assert_eq!(verdict(&[], &deciding), expected, "{deciding:?}");
        }
    }

    #[test]
    fn what_nobody_chose_comes_first() {
        let all = [new(Why::ShadowMode, EVERY_DOMAIN), new(Why::RulesRejected, EVERY_DOMAIN)];
        let with = |hash: &str| Replica { rules_hash: Some(hash.to_owned()), ..Replica::default() };
        let shown = shown(&all, &["1", "2", "2"].map(with));
        let whys: Vec<_> = shown.iter().map(|one| one.why.as_str()).collect();
        assert_eq!(whys, ["other_rules", "rules_rejected", "shadow_mode"]);
        assert_eq!(shown[0].text, "all domains: replicas serve 2 different sets of rules");
        assert_eq!(super::shown(&[], &[]), []);
    }
}
