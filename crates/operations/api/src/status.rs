//! The status, the replicas, and the log of changes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OrUnknown;

shapes! {
    Status {
        version: String; commit: String;
        zone_data: String, "Release of the time zone database in the program.";
        time: String, "Current time.";
        started_at: String; uptime_seconds: u64;
        read_only: bool, "Value of `ADMIN_READ_ONLY`.";
        token_file_failure?: Option<String>,
            "Why `ADMIN_TOKEN_FILE` cannot be used; the tokens that were read before stay valid. Absent while it can.";
        key_values: String, "Value of `KEY_VALUES`: `plain`, `hashed` or `hidden`.";
        enforced: String, "Whether limits are enforced: `yes`, `partly` or `no`; `not_enforced` and `store` say why.";
        not_enforced: Vec<NotEnforced>,
            "What keeps limits from being enforced, on all replicas that answered; first what nobody chose.";
        rules: RulesStatus; store: StoreStatus;
        policy: String, "Value of `STORE_FAILURE_POLICY`: `error`, `allow`, `deny`, `local` or `share`.";
        callers: Vec<String>,
            "What callers get while the store is out of service: a text for each policy that decides, such as \
             `error: 163/s failing; Envoy lets them through unless failure_mode_deny`. Empty while the store works.";
        requests: Requests; latency: Latency; answers: Answers;
        unmatched: BTreeMap<String, u64>,
            "Descriptors of the last minutes that have no rule, by the reason: `unknown_domain`, `no_rule`.";
        replica: String, "The name of the replica that rules and memory are of.";
        scope: String, "The replicas that the numbers are of: `all`, `this`, or a name.";
        memory: Memory;
        replicas: Option<OrUnknown<Vec<Replica>>>,
            "`unknown` while Redis is out of service; null in the status of another replica.";
        overrides: OverridesStatus;
    }

    /// A reason why limits of a domain are not enforced.
    NotEnforced {
        domain: String, "A domain; `*` for all, `__unknown__` for those without rules.";
        why: String,
            "`domain_allow`, `domain_shadow`, `shadow_mode`, `rule_shadow`, `rules_missing`, `rules_rejected`, \
             `store_failure`, `unmatched` or `other_rules`.";
        policy?: Option<String>, "The failure policy that decided.";
        chosen: bool, "True if a switch, a rule or a setting says so.";
        alone?: bool, "True for a switch of single replicas.";
        since: String, "When it was set, or first seen by a replica; empty if unknown.";
        until?: Option<String>; by?: Option<String>; reason?: Option<String>;
        n: u64, "Requests of the last minute, rules in shadow mode, or sets of rules.";
        of: u64, "Of how many requests or rules.";
        replicas: u64;
        text?: String, "The same in a sentence.";
    }

    RulesStatus {
        is_current: bool, "True if the rules in force are those that were read last.";
        hash: Option<String>; loaded_at: Option<String>; files: usize; domains: usize; rules: usize; warnings: usize;
        last_error: Option<RejectedRules>, "The last rejected rules, even if valid ones were loaded since.";
    }

    RejectedRules {
        at: String;
        errors: Vec<String>, "At most ten.";
    }

    StoreStatus {
        kind: String, "`memory`, `redis` or `memcached`.";
        address: Option<String>; connected: bool;
        since: Option<String>,
            "The start of the outage; null while the store works. A store that is connected and fails most requests \
             is out of service too.";
        error: Option<String>, "The last error of the store in an outage.";
        stale: bool, "True in an outage; the latencies are then those of the time before.";
        connections: u64; breakers_open: u64; queued: u64;
        #[serde(flatten)]
        latency: Latency;
    }

    Requests {
        per_second: ByCode<f64>, "Of the last second.";
        total: ByCode;
    }

    #[derive(Copy)]
    #[schemars(bound = "N: JsonSchema + Default", inline)]
    ByCode<N = u64> { ok: N; over_limit: N; error: N; }
}

impl<N> From<[N; 3]> for ByCode<N> {
    fn from([ok, over_limit, error]: [N; 3]) -> Self {
        Self { ok, over_limit, error }
    }
}

shapes! {
    /// Of the last minute; null without requests.
    #[derive(Copy)]
    Latency { p50_seconds: Option<f64>; p99_seconds: Option<f64>; }

    /// Requests of the last minute that their callers decided, because no answer arrived in time.
    #[derive(Copy)]
    Answers {
        abandoned: u64, "The caller reset the stream or left before the answer arrived.";
        late: u64, "The answer was sent after the caller's deadline (`grpc-timeout`); most are among the abandoned, too.";
    }

    Memory {
        resident_bytes: Option<u64>;
        limit_bytes?: Option<usize>, "What the process may use.";
        limit_set_by?: Option<String>, "`MEMORY_LIMIT`, `cgroup` or `machine`.";
        bounds?: Option<BTreeMap<String, MemoryBound>>, "The bounds that are shares of the limit, by name.";
        keys: Option<KeysInMemory>, "The counters in this process, if they are in memory.";
    }

    MemoryBound {
        bytes: usize;
        used: Option<usize>, "Null if it is not measured.";
    }

    KeysInMemory { held: usize; max: usize; bytes: usize; evicted: u64; evicted_over_limit: u64; }

    /// The overrides by their actions.
    OverridesStatus {
        limit: u64; block: u64; allow: u64; shadow: u64; scale: u64;
        kept_in: String, "`memory`, `file` or `redis`.";
        failure: Option<String>,
            "Why `OVERRIDES_FILE` could not be written, so that changes are refused; the next change tries again.";
        owed: usize, "Number of changes of this replica that wait for Redis; they are lost if the replica ends before.";
    }

    Replicas {
        own: String, "The id of this replica.";
        serve_same_rules: OrUnknown<bool>;
        replicas: OrUnknown<Vec<Replica>>,
            "This replica alone if counters are not in Redis, or with `REPLICA_SYNC=false`.";
    }

    Replica {
        id: String, "Host name and a random number.";
        version: String;
        rules_hash: Option<String>,
            "With the release of its time zone database, `90be12c2cd8f9d3a+2026f`, if an override has a calendar in \
             another zone than UTC.";
        requests_per_second: u64;
        started: u64, "Start time, in seconds since 1970.";
        age_seconds: u64, "Seconds since its last publication.";
        summary: String,
            "Whether its numbers are in the replies, or why not: `published`, `turned off` or `unreadable`.";
        rejected?: Option<String>, "Why it rejected the newest rules, with file and line; absent if it serves them.";
    }

    Changes {
        changes: Vec<Change>;
        warning: Option<String>, "Why changes of other replicas are missing.";
    }

    Change {
        time: String, "RFC 3339.";
        action: String,
            "The name of a call that changes something, such as `override_set`, `counter_reset` or \
             `override_import`; or `rules_reloaded`, `rules_rejected`, `started`, `stopped`, `replica_lost`, \
             `store_lost`, `store_back`, `changes_dropped`.";
        what: String, "Values of descriptors are shown as `KEY_VALUES` says.";
        by: Option<String>,
            "The name of a token, `user@host` of a command, or the peer; null for what the service did by itself.";
        reason: Option<String>;
        replicas: Vec<String>, "Several for the same event on several replicas.";
        rules?: Vec<RuleChange>;
        more_rules?: usize, "The number of changed rules that are not listed.";
    }

    /// A rule that a reload added, changed or removed.
    RuleChange {
        rule: String, "Its full key.";
        old: Option<String>, "Its limits, such as `5 per minute`; null for a new rule.";
        new: Option<String>, "Null for a removed rule.";
        file: Option<String>; line: Option<u32>;
    }
}
