//! `GET /api/v1/why`: every recorded request with a value, each of its descriptors, and which of them were refused, since
//! when, by which line, and by whose override.
//!
//! The requests are those that this replica has recorded for trials, the refusals those of all replicas. A request is
//! refused for any of its descriptors, so an exemption of one leaves the others: they are listed together here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    io::{BufRead as _, BufReader},
};

use http::StatusCode;
use memchr::memmem;
use serde::Deserialize;

use super::{
    Api,
    overrides::{as_api, json_of},
    reply::{Call, Problem, Reply},
    view::{Parts, View, deciding},
};
use api::{Entry, KeyRefusals, Why, WhyDescriptor, WhyRequest, WhyTarget};
use clock::{Clock as _, SystemClock, Time};
use limit::Limits;
use limiter::{Recording, Served};
use recent::{KeyValues, LimitShown, shown};

/// The most kinds of requests in a reply, and the most descriptors that are looked for in other requests.
const MAX_REQUESTS: usize = 100;
const MAX_DESCRIPTORS: usize = 64;

/// Longer requests are counted and not listed: their callers determine how long they are.
const MAX_LINE: usize = 16 << 10;

/// A line of the recording, as far as it is read.
#[derive(Deserialize)]
struct Line {
    time: String,
    domain: String,
    descriptors: Vec<Recorded>,
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Recorded {
    entries: Vec<Entry>,
}

/// Requests with the same domain and descriptors.
type Kind = (String, Vec<Recorded>);

struct Times {
    requests: u64,
    first: String,
    last: String,
}

#[derive(Default)]
struct Occurrences {
    kinds: BTreeMap<Kind, Times>,
    /// Requests that are too long, or of kinds that found no room.
    more: u64,
    /// Requests without the value that have a descriptor, by its text.
    others: HashMap<String, u64>,
}

pub(super) async fn get(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let value = call.query.needed("value");
    if value.is_empty() {
        return Err(Problem::bad_request(
            "value: expected the value of an entry, such as a user or an address",
        ));
    }
    let values = api.managed.recent.values();
    if values == KeyValues::Hidden {
        let message = "values are hidden: set KEY_VALUES to plain or hashed";
        return Err(Problem::new(StatusCode::CONFLICT, message));
    }
    let wanted = shown(value, values).into_owned();
    let parts = Parts { refusals: true, ..Parts::default() };
    let View { merged, whose } = api.view(&call.query, parts).await?;
    let recording = api.managed.trials.as_ref().map(|trials| trials.requests.recording());
    let share_of_keys = recording.as_ref().map(|recording| recording.rate);
    let seen = match recording {
        None => Occurrences::default(),
        Some(recording) => {
            let wanted = wanted.clone();
            // One search or trial at a time: each takes a thread for as long as the recording is large.
            let turn = api.trial.clone().lock_owned().await;
            let searched = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                search(&recording, &wanted)
            });
            let failed = |_| {
                let message = "the search panicked; the log has the place";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            };
            searched.await.map_err(failed)?
        }
    };
    let has_value = |refusal: &&fleet::KeyRefusals| refusal.descriptor.iter().any(|one| one.value == wanted);
    let served = api.managed.source.current();
    let now = SystemClock.now();
    let describe = |domain: &str, entries: &[Entry]| {
        let others = seen.others.get(&fragment(entries)).copied().unwrap_or_default();
        let mut refused = merged.refusals.iter();
        let refused =
            refused.find(|one| one.domain == domain && one.descriptor == entries).and_then(as_listed);
        let one = WhyDescriptor { descriptor: entries.to_vec(), refused, others, ..WhyDescriptor::default() };
        match &served {
            Some(served) if values == KeyValues::Plain => of_rules(api, served, domain, one, now),
            _ => one,
        }
    };
    let kinds = seen.kinds.iter().map(|((domain, descriptors), times)| WhyRequest {
        domain: domain.clone(),
        descriptors: descriptors.iter().map(|one| describe(domain, &one.entries)).collect(),
        requests: times.requests,
        first: times.first.clone(),
        last: times.last.clone(),
    });
    let mut requests: Vec<WhyRequest> = kinds.collect();
    // What others have refused, or this replica before the recording begins.
    for refusal in merged.refusals.iter().filter(has_value) {
        let is_listed = |request: &WhyRequest| {
            let mut descriptors = request.descriptors.iter();
            request.domain == refusal.domain && descriptors.any(|one| one.descriptor == refusal.descriptor)
        };
        if !requests.iter().any(is_listed) {
            requests.push(WhyRequest {
                descriptors: vec![describe(&refusal.domain, &refusal.descriptor)],
                domain: refusal.domain.clone(),
                requests: 0,
                first: refusal.first.clone(),
                last: refusal.last.clone(),
            });
        }
    }
    requests.sort_by(|one, other| other.last.cmp(&one.last));
    let reply = Why {
        exemption: exemption(&requests, value, &wanted, values),
        value: wanted,
        requests,
        more: seen.more,
        share_of_keys,
        key_values: values.name().to_owned(),
        whose,
    };
    Reply::json(api, &reply)
}

/// What exempts the caller with this value: any descriptor with it, and each that no other request has.
fn exemption(requests: &[WhyRequest], value: &str, wanted: &str, values: KeyValues) -> Vec<WhyTarget> {
    let mut targets = BTreeSet::new();
    for WhyRequest { domain, descriptors, .. } in requests {
        for one in descriptors {
            let own = one.descriptor.iter().find(|entry| entry.value == wanted);
            let is_limited = !one.limits.is_empty() || one.refused.is_some();
            let target = match own {
                // What is shown may be a hash.
                Some(entry) => WhyTarget {
                    entry: Some(Entry { value: value.to_owned(), ..entry.clone() }),
                    ..WhyTarget::default()
                },
                None if is_limited && one.others == 0 && values == KeyValues::Plain => {
                    WhyTarget { descriptor: Some(one.descriptor.clone()), ..WhyTarget::default() }
                }
                None => continue,
            };
            targets.insert(WhyTarget { domain: domain.clone(), ..target });
        }
    }
    targets.into_iter().collect()
}

/// A refusal as the API has it; `None` if another version, or whoever writes to Redis, has published something else.
fn as_listed(one: &fleet::KeyRefusals) -> Option<KeyRefusals> {
    serde_json::to_value(one).and_then(serde_json::from_value).ok()
}

/// The descriptor with its rule, and the override that decides it.
fn of_rules(api: &Api, served: &Served, domain: &str, one: WhyDescriptor, now: Time) -> WhyDescriptor {
    let entries: Vec<_> =
        one.descriptor.iter().map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
    let Some(rules) = served.rules.domain(domain) else { return one };
    let rule = rules.find(&entries, &mut String::new()).map(|matched| matched.rule);
    let place = rule.and_then(|rule| served.attached.recent(rule.id)?.place.as_ref());
    let limits = rule.and_then(|rule| rule.limits()).into_iter().flat_map(Limits::iter);
    let by = deciding(api.managed.keeper.index(), served, domain, &entries, now);
    WhyDescriptor {
        rule: rule.map(|rule| rule.full_key.to_string()),
        file: place.map(|(file, _)| file.to_string()),
        line: place.map(|(_, line)| *line),
        limits: limits.map(|limit| LimitShown::at(limit, now).to_string()).collect(),
        by_override: by.map(|by| as_api(json_of(api, &by))),
        ..one
    }
}

/// A descriptor as the recording has it.
fn fragment(entries: &[Entry]) -> String {
    format!("{{\"entries\":{}", serde_json::to_string(entries).unwrap_or_default())
}

/// The requests with an entry of this value; then how many others have their descriptors.
fn search(recording: &Recording, value: &str) -> Occurrences {
    let needle = format!("\"value\":{}", serde_json::to_string(value).unwrap_or_default());
    let needle = memmem::Finder::new(needle.as_bytes());
    let mut seen = Occurrences::default();
    each_line(recording, |line| {
        if needle.find(line).is_none() {
            return;
        }
        if line.len() > MAX_LINE {
            seen.more += 1;
            return;
        }
        // A line of the recording's own, such as that of its share, has no descriptors.
        let Ok(Line { time, domain, descriptors }) = serde_json::from_slice(line) else { return };
        let is_full = seen.kinds.len() >= MAX_REQUESTS;
        match seen.kinds.entry((domain, descriptors)) {
            btree_map::Entry::Occupied(mut known) => {
                let times = known.get_mut();
                times.requests += 1;
                times.last = time;
            }
            btree_map::Entry::Vacant(_) if is_full => seen.more += 1,
            btree_map::Entry::Vacant(new) => {
                new.insert(Times { requests: 1, first: time.clone(), last: time });
            }
        }
    });
    let all = seen.kinds.keys().flat_map(|(_, descriptors)| descriptors);
    let mut texts: Vec<String> = all.map(|one| fragment(&one.entries)).collect();
    texts.sort_unstable();
    texts.dedup();
    texts.truncate(MAX_DESCRIPTORS);
    let finders: Vec<_> = texts.iter().map(|text| memmem::Finder::new(text.as_bytes())).collect();
    let mut others = vec![0; texts.len()];
    each_line(recording, |line| {
        if needle.find(line).is_none() {
            for (others, finder) in others.iter_mut().zip(&finders) {
                *others += u64::from(finder.find(line).is_some());
            }
        }
    });
    drop(finders);
    seen.others = texts.into_iter().zip(others).collect();
    seen
}

fn each_line(recording: &Recording, mut each: impl FnMut(&[u8])) {
    let mut reader = BufReader::new(recording.clone());
    let mut line = Vec::new();
    // Reading memory cannot fail.
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        each(&line);
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn what_another_version_has_published_is_left_out_and_no_panic() {
        let with = |example: serde_json::Value| {
            let example: Map<_, _> = example.as_object().cloned().unwrap_or_default();
            as_listed(&fleet::KeyRefusals { count: 3, example, ..fleet::KeyRefusals::default() })
        };
        assert_eq!(with(json!({"decided_by": "counter"})).map(|one| one.count), Some(3));
        assert_eq!(with(json!({"decided_by": 7})), None);
        assert_eq!(with(json!({"hits": "many", "override": []})), None);
    }
}
