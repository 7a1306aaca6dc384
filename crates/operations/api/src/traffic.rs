//! What was counted: rules, keys, refusals, counters and holds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Calendar, Entry, Override, Whose};

shapes! {
    #[schemars(bound = "R: JsonSchema + Default", rename = "Rules")]
    Rules<R = RuleListed> {
        rules: Vec<R>;
        total: usize, "Number of rules, including those not shown.";
        #[serde(flatten)]
        whose: Whose;
    }

    #[schemars(bound = "L: JsonSchema + Default", rename = "RuleListed")]
    RuleListed<L = Limit> {
        domain: String;
        rule: String, "Its full key: the domain and each level, joined by dots.";
        file: Option<String>; line: Option<u32>; limits: Vec<L>; unlimited: bool; shadow_mode: bool; quota_mode: bool;
        has_fixed_name: bool,
            "False with `detailed_metric` or `value_to_metric`: hits are then counted under names made from \
             requests, not here.";
        hits: Hits;
        per_second: Option<Hits<f64>>, "Of the last two seconds; null in the first second after a reload.";
        partial?: bool, "True if a replica did not publish its hits of this rule; there may be more.";
    }

    #[derive(Copy)]
    #[schemars(bound = "N: JsonSchema + Default", inline)]
    Hits<N = u64> { allowed: N; refused: N; near: N; shadowed: N; }
}

impl<N> From<[N; 4]> for Hits<N> {
    fn from([allowed, refused, near, shadowed]: [N; 4]) -> Self {
        Self { allowed, refused, near, shadowed }
    }
}

shapes! {
    Limit {
        requests_per_unit: u64;
        unit: String, "`SECOND`, `MINUTE`, `HOUR`, `DAY`, `WEEK`, `MONTH` or `YEAR`.";
        unit_multiplier: u64; calendar?: Option<Calendar>;
        schedule?: Option<String>,
            "What its schedule says now and what is next, such as `mon-fri 08:00-20:00 Europe/Berlin, then 100 at \
             20:00`.";
        name?: Option<String>;
    }

    RulesFiles {
        files: Vec<RulesFile>;
        merge_domains: bool, "Value of `MERGE_DOMAIN_CONFIG`: several files may have the same domain.";
    }

    RulesFile { name: String; text: String; }

    Top {
        keys: Vec<KeyHits>;
        #[serde(flatten)]
        window: Window;
    }

    /// The last minutes.
    #[schemars(inline)]
    Window {
        window_seconds: u64;
        missed: u64, "Requests since the start that were not recorded because the tables were being read.";
        key_values: String, "Value of `KEY_VALUES`: `plain`, `hashed` or `hidden`.";
        #[serde(flatten)]
        whose: Whose;
    }

    /// A key and its hits.
    KeyHits {
        domain: String;
        rule: Option<String>, "Null if an override meets the key, or a limit of the request, and no rule.";
        descriptor: Vec<Entry>;
        descriptor_cut?: bool, "True if the descriptor is longer than shown.";
        #[serde(rename = "override")]
        by_override?: Option<Override>, "The override that decides the key now.";
        allowed: u64; refused: u64;
        shadowed: u64, "Hits over the limit that shadow mode allowed; `allowed` does not have them.";
        error: u64, "Maximum error of the numbers.";
    }

    Unmatched {
        unmatched: Vec<UnmatchedShape>;
        total: BTreeMap<String, u64>, "Descriptors of the last minutes, by the reason why they have no rule.";
        #[serde(flatten)]
        window: Window;
    }

    UnmatchedShape {
        reason: Option<String>, "`unknown_domain` or `no_rule`.";
        domain: String; descriptor: Vec<Entry>; descriptor_cut: bool;
        count: u64, "Descriptors of the domain, or with these keys; the values are an example.";
        error: u64, "Maximum error of the count.";
    }

    #[schemars(bound = "K: JsonSchema + Default", rename = "RefusedKeys")]
    RefusedKeys<K = KeyRefusals> {
        refusals: Vec<K>;
        others: u64, "Refusals of the last ten minutes whose keys made room for others.";
        key_values: String;
        #[serde(flatten)]
        whose: Whose;
    }

    /// A refused key.
    #[schemars(bound = "E: JsonSchema + Default", rename = "KeyRefusals")]
    KeyRefusals<E = Refusal> {
        domain: String; descriptor: Vec<Entry>;
        descriptor_cut?: bool, "True if the descriptor is longer than shown.";
        rule: Option<String>, "Null if an override meets the key, or a limit of the request, and no rule.";
        file: Option<String>; line: Option<u32>;
        count: u64, "Number of refusals.";
        first: String; last: String;
        reason: String, "Why the last one was refused, such as `over 5 per hour`.";
        example: E;
    }

    /// The requests with a value.
    Why {
        value: String, "As `KEY_VALUES` shows it.";
        requests: Vec<WhyRequest>, "Those with the same descriptors are one; the last comes first.";
        more?: u64, "Recorded requests of kinds that are not listed.";
        exemption: Vec<WhyTarget>,
            "What exempts the caller from all limits that the requests meet: its own entries, and descriptors that no other \
             recorded request has.";
        share_of_keys: Option<f64>, "The share of the keys whose requests are recorded; null if none are.";
        key_values: String;
        #[serde(flatten)]
        whose: Whose;
    }

    /// What an override is set for: an entry, or a descriptor.
    #[derive(Eq, PartialOrd, Ord)]
    WhyTarget { domain: String; entry?: Option<Entry>; descriptor?: Option<Vec<Entry>>; }

    WhyRequest {
        domain: String;
        descriptors: Vec<WhyDescriptor>, "A request is refused if one of them is.";
        requests: u64, "Recorded ones of this replica; 0 if only a refusal is known.";
        first: String; last: String;
    }

    WhyDescriptor {
        descriptor: Vec<Entry>;
        rule: Option<String>; file: Option<String>; line: Option<u32>;
        limits: Vec<String>, "Such as `5 per hour`.";
        #[serde(rename = "override")]
        by_override?: Option<Override>, "The override that decides it now.";
        refused?: Option<KeyRefusals>, "Its refusals of the last minutes.";
        others: u64, "Recorded requests with this descriptor and without the value: an exemption is theirs, too.";
    }

    #[schemars(bound = "R: JsonSchema + Default", rename = "Refusals")]
    Refusals<R = Refusal> {
        refusals: Vec<R>; key_values: String;
        #[serde(flatten)]
        whose: Whose;
    }

    Refusal {
        id: u64, "Number of the refusal in this process.";
        time: String;
        code: String, "`over_limit`; `ok` in shadow mode.";
        shadowed?: bool, "True if shadow mode allowed it although it was over the limit.";
        domain: String; descriptor: Vec<Entry>;
        descriptor_cut?: bool, "True if the descriptor is longer than shown.";
        rule: Option<String>, "Null for a limit override in the request.";
        file: Option<String>; line: Option<u32>; limit: Option<LimitOfRule>;
        count: Option<u64>, "The counter after the request; null if it was not read.";
        hits: u64;
        retry_after_seconds: Option<u64>, "Null if the hits can never be allowed.";
        decided_by: String, "`counter`, `over_limit_cache`, `override` or `failure_policy`.";
        #[serde(rename = "override")]
        by_override?: Option<Override>, "The override that decided.";
        blocked?: Option<Blocked>, "Present if an override blocks the descriptor.";
        governs: bool, "True if this descriptor rejects the request for longest.";
        weight?: u64, "Number of refusals that this one stands for.";
    }

    LimitOfRule {
        #[serde(flatten)]
        limit: Limit;
        number: usize, "Number of the limit in the rule, from 1.";
        of: usize, "Number of limits of the rule.";
    }

    Blocked { until: Option<String>, "Null if the block has no end."; }

    Counters {
        rule: Option<String>, "The rule that matches.";
        #[serde(rename = "override")]
        by_override: Option<Override>, "The override that applies, or the switch of the domain.";
        limits: Vec<CounterLimit>;
    }

    CounterLimit {
        rule: Option<String>; name: Option<String>; requests_per_unit: u64; unit: String; unit_multiplier: u64;
        calendar: Option<Calendar>;
        schedule: Option<String>, "What its schedule says now and what is next.";
        algorithm: String,
            "`fixed_window`, `sliding_window`, `sliding_log`, `token_bucket`, `leaky_bucket` or `concurrency`.";
        used: u64;
        spent: Option<u64>, "Of a limit with `hold`, what was settled or charged.";
        held: Option<u64>, "Of a limit with `hold`, what requests under way hold.";
        remaining: u64; resets_in_seconds: u64;
    }

    CountersReset {
        reset: usize, "Number of counters.";
        warning: Option<String>, "Why other replicas may still reject requests.";
    }

    Holds { holds: Vec<Hold>; }

    Hold {
        id: String, "The id of the request's holds.";
        requests_per_unit: u64;
        unit: String, "The unit of the limit, or `UNKNOWN` for requests under way.";
        held: u64;
        r#in: Option<String>, "The currency; empty without one.";
        expires_at: String;
    }

    HoldsClosed { closed: usize, "Number of holds."; }

    /// The comparison of rules with those in force.
    #[schemars(bound = "R: JsonSchema + Default", rename = "Trial")]
    Trial<R = serde_json::Map<String, serde_json::Value>> {
        refused_now: u64, "Requests that the rules in force refuse.";
        recorded: Recorded;
        report: R, "The report of `tollgate replay --json`, with the rules in force as `--against`.";
    }

    /// What an override would have made of the recorded requests.
    Forecast {
        requests: u64;
        newly_refused: u64, "Requests that the override alone refuses.";
        newly_allowed: u64;
        from: Option<String>; to: Option<String>;
        recorded: Recorded;
    }

    Recorded {
        share_of_keys: f64, "The share of the keys whose requests are recorded, all of them; 1 is all keys.";
        bytes: usize, "Bytes of recorded requests.";
    }
}
