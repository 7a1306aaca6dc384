//! The cost of a decision without gRPC, and the memory of a counter: `cargo bench --bench decisions`.
//!
//! Prints nanoseconds per decision for one rule, for ten thousand of several kinds, and with overrides, as a ratio to the
//! one rule in the same run, and the bytes of a million counters. Compare the ratios: they are stable on a busy machine,
//! where nanoseconds drift.

use std::{error::Error, fmt::Write, fs, hint::black_box, sync::Arc, time::Instant};

use clock::{Clock, SystemClock, Time};
use counters::Store;
use limit::Unit;
use limiter::{self, Decided, Descriptor, Entry, Limiter, Policy, Request};
use memory::MemoryStore;
use metrics::{ShardCount, Stats, StatsOptions};
use overrides::{Action, Index, Override, Target, Value};
use recent::{KeyValues, Recent};
use rules::{CompileOptions, RuleSet};
use rules_source::{RulesDir, Source};

const RULES: usize = 10_000;
const ROUNDS: usize = 15;
const DECISIONS: u32 = 40_000;

fn main() -> Result<(), Box<dyn Error>> {
    let exact = |n: usize| {
        format!("  - {{key: user, value: u{n}, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n")
    };
    let prefix = |n: usize| {
        format!("  - {{key: path, value: /p{n}/*, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n")
    };
    let suffix = |n: usize| {
        format!("  - {{key: path, value: '*/s{n}', rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n")
    };
    let bare = "  - {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}\n".to_owned();
    let many = |rule: &dyn Fn(usize) -> String| (0..RULES).map(rule).collect::<String>();
    let several = |limits: &str| format!("  - {{key: user, value: u7, rate_limit: [{limits}]}}\n");
    let two = several("{unit: second, requests_per_unit: 9}, {unit: hour, requests_per_unit: 9}");
    let three = several(
        "{unit: second, requests_per_unit: 9}, {unit: hour, requests_per_unit: 9}, \
         {unit: day, requests_per_unit: 9, algorithm: token_bucket}",
    );
    let mut cases = vec![
        Case::new("1 rule", "user", &exact(7), &|_| "u7".into())?,
        Case::new("1 rule of two limits", "user", &two, &|_| "u7".into())?,
        Case::new("1 rule of three limits", "user", &three, &|_| "u7".into())?,
        Case::new("10,000 rules, one matched", "user", &many(&exact), &|_| "u7".into())?,
        Case::new("10,000 rules, all matched", "user", &many(&exact), &|n| format!("u{n}"))?,
        Case::new("1 wildcard", "path", &prefix(7), &|_| "/p7/x".into())?,
        Case::new("10,000 wildcards by prefix, one matched", "path", &many(&prefix), &|_| "/p7/x".into())?,
        Case::new("10,000 wildcards by suffix, one matched", "path", &many(&suffix), &|_| "/x/s7".into())?,
    ];
    let overridden = |name, count: usize, value: &dyn Fn(usize) -> String| -> Result<Case, Box<dyn Error>> {
        let case = Case::new(name, "user", &bare, value)?;
        case.with_overrides(count)
    };
    cases.push(Case::new("1 rule for every value", "user", &bare, &|n| format!("u{n}"))?);
    cases.push(overridden("the same and 1 override, of another value", 1, &|n| format!("u{n}"))?);
    cases.push(overridden("the same and 1,000,000, all of other values", 1_000_000, &|n| format!("u{n}"))?);
    cases.push(overridden("the same and 1,000,000, one of them matched", 1_000_000, &|n| {
        format!("c{}", n * 97)
    })?);
    cases.push(
        Case::new("1 rule, recorded, nearly all refused", "user", &exact(7), &|_| "u7".into())?.noting()?,
    );
    let noted = Case::new("1 rule for every value, recorded", "user", &bare, &|n| format!("u{n}"))?;
    cases.push(noted.noting()?);
    // Round by round, so that other load on the machine affects all of them.
    for _ in 0..ROUNDS {
        for case in &mut cases {
            case.round();
        }
    }
    println!("{:44}{:>14}{:>8}", "rules", "ns a decision", "ratio");
    let base = cases[0].median();
    for case in &mut cases {
        let median = case.median();
        println!("{:44}{median:>14.0}{:>8.2}", case.name, median / base);
    }
    million_counters();
    Ok(())
}

struct Case {
    name: &'static str,
    rules: String,
    limiter: Arc<Limiter>,
    requests: Vec<Request<'static>>,
    nanos: Vec<f64>,
}

impl Case {
    fn new(
        name: &'static str,
        key: &'static str,
        rules: &str,
        value: &dyn Fn(usize) -> String,
    ) -> Result<Self, Box<dyn Error>> {
        let request = |n| Request {
            domain: "bench",
            descriptors: std::iter::once(Descriptor {
                entries: std::iter::once(Entry { key, value: value(n).leak() }).collect(),
                ..Descriptor::default()
            })
            .collect(),
            ..Request::default()
        };
        let rules = format!("domain: bench\ndescriptors:\n{rules}");
        Ok(Self {
            name,
            limiter: limiter(&rules, None, Arc::default())?,
            requests: (0..RULES).map(request).collect(),
            nanos: Vec::new(),
            rules,
        })
    }

    /// The same, recording top keys and rejections.
    fn noting(self) -> Result<Self, Box<dyn Error>> {
        Ok(Self { limiter: limiter(&self.rules, Some(recent()), Arc::default())?, ..self })
    }

    /// The same with overrides for this many customers.
    fn with_overrides(self, count: usize) -> Result<Self, Box<dyn Error>> {
        let index = Arc::new(Index::default());
        let mut draft = index.draft();
        for n in 0..count {
            let entries = vec![("user".into(), Value::Exact(format!("c{n}").into()))];
            index.add_to(
                &mut draft,
                Override {
                    target: Target::new("bench", entries)?,
                    action: Action::Limit { requests_per_unit: 9, unit: Unit::Hour, calendar: None },
                    limit_name: None,
                    expires: None,
                    reason: "".into(),
                    by: "".into(),
                },
            )?;
        }
        index.add(&draft)?;
        Ok(Self { limiter: limiter(&self.rules, None, index)?, ..self })
    }

    fn round(&mut self) {
        let begun = Instant::now();
        for request in self.requests.iter().cycle().take(DECISIONS as usize) {
            let decided = self.limiter.try_decide(request, self.limiter.now(), None, None);
            black_box(matches!(decided, Ok(Decided::Answer(_))));
        }
        self.nanos.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(DECISIONS));
    }

    fn median(&mut self) -> f64 {
        self.nanos.sort_by(f64::total_cmp);
        self.nanos[self.nanos.len() / 2]
    }
}

/// Records decisions, as in the service.
fn recent() -> Arc<Recent> {
    let (shards, values) = (ShardCount::for_workers(1), KeyValues::Plain);
    Arc::new(Recent::new(shards, values, None))
}

fn limiter(
    rules: &str,
    recent: Option<Arc<Recent>>,
    overrides: Arc<Index>,
) -> Result<Arc<Limiter>, Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    fs::create_dir(root.path().join("config"))?;
    fs::write(root.path().join("config/bench.yaml"), rules)?;
    let directory = RulesDir::new(root.path(), "", "config", false);
    let stats = Arc::new(Stats::new(StatsOptions::default()));
    let counters = stats.clone();
    let noted_in = recent.clone();
    let attach = move |rules: &RuleSet| {
        let noted = noted_in.as_ref().map(|recent| recent.rules(rules));
        limiter::handles(rules, &counters, noted.unwrap_or_default())
    };
    let source = Arc::new(Source::new(CompileOptions::default(), attach));
    source.reload(&directory, SystemClock.now());
    let policy = Policy { max_local_keys: 1, ..Policy::default() };
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(10_000_000));
    let limiter = Limiter::new(policy, source, store, None, stats, Arc::new(SystemClock));
    let limiter = limiter.with_overrides(overrides);
    Ok(Arc::new(match recent {
        Some(recent) => limiter.with_recent(recent),
        None => limiter,
    }))
}

/// Fills a table with a million counters, and measures the growth of the process's memory.
fn million_counters() {
    const COUNTERS: usize = 1_000_000;
    let table = counters::table::Table::<u64>::new(10 * COUNTERS);
    let before = resident_bytes();
    let [now, end] = [1, 3600].map(Time::from_seconds);
    let mut key = String::new();
    for n in 0..COUNTERS {
        key.clear();
        let _ = write!(key, "bench_user_u{n}_0");
        table.update(counters::CounterId::of_name(&key), now, end, |count| *count += 1);
    }
    let grown = resident_bytes().saturating_sub(before);
    let slots = table.usage().bytes;
    println!("\na million counters: {} kB more resident, {} kB of them slots", grown / 1000, slots / 1000);
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
