//! The pages of the debug port (rules, leases, metrics), and the page of the metrics port.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};

use super::{Answer, BodyLimit, Pages, page::Page, text};
use clock::{Clock, SystemClock};
use counters::Store;
use limiter::Handles;
use metrics::{CONTENT_TYPE, LeaseState};
use overrides::{Index, model::timestamp};
use recent::{KeyValues, shown};
use rules_source::Source;

pub struct DebugPages {
    leases: Arc<Page>,
    rules: Arc<Page>,
    metrics: Arc<Page>,
}

/// What the pages of the debug port show.
pub struct Shown {
    pub source: Arc<Source<Handles>>,
    pub store: Arc<dyn Store>,
    pub overrides: Arc<Index>,
    pub key_values: KeyValues,
}

/// All metrics in the text format of Prometheus.
pub struct MetricsPage {
    path: String,
    page: Arc<Page>,
}

/// The maximum number of overrides in `/rlconfig`. There may be a million.
const MAX_OVERRIDES: usize = 1_000;
/// The maximum number of leases in `/leases`.
const MAX_LEASES: usize = 1000;

const PLAIN: &str = "text/plain; charset=utf-8";

const PAGES: &str = "/: this list\n\
    /leases: print out the leases that hold the most hits\n\
    /rlconfig: print out the currently loaded configuration for debugging\n\
    /stats: print out stats\n";

impl Pages for MetricsPage {
    type Asked = ();

    fn admit(&self, head: &Parts) -> Result<((), BodyLimit), Answer> {
        let Self { path, .. } = self;
        if head.uri.path() == path {
            return Ok(((), BodyLimit::NOTHING));
        }
        Err(text(StatusCode::NOT_FOUND, format!("Not found. The metrics are at {path}\n")))
    }

    async fn answer(self: Arc<Self>, (): (), _request: Request<Bytes>) -> Answer {
        self.page.get().await
    }
}

impl MetricsPage {
    /// The metrics, which are served at this path.
    pub fn new(
        path: String,
        write: impl Fn(&mut dyn fmt::Write) -> fmt::Result + Send + Sync + 'static,
    ) -> Self {
        Self { path, page: Page::new(CONTENT_TYPE, write) }
    }
}

pub enum DebugPage {
    List,
    Leases,
    Rules,
    Metrics,
}

impl Pages for DebugPages {
    type Asked = DebugPage;

    fn admit(&self, head: &Parts) -> Result<(DebugPage, BodyLimit), Answer> {
        let page = match head.uri.path() {
            "/" => DebugPage::List,
            "/leases" => DebugPage::Leases,
            "/rlconfig" => DebugPage::Rules,
            "/stats" => DebugPage::Metrics,
            _ => return Err(text(StatusCode::NOT_FOUND, PAGES)),
        };
        Ok((page, BodyLimit::NOTHING))
    }

    async fn answer(self: Arc<Self>, page: DebugPage, _request: Request<Bytes>) -> Answer {
        match page {
            DebugPage::List => text(StatusCode::OK, PAGES),
            DebugPage::Leases => self.leases.get().await,
            DebugPage::Rules => self.rules.get().await,
            DebugPage::Metrics => self.metrics.get().await,
        }
    }
}

impl DebugPages {
    pub fn new(shown: Shown, metrics: &MetricsPage) -> Self {
        let shown = Arc::new(shown);
        let leases = shown.clone();
        Self {
            leases: Page::new(PLAIN, move |out| leases.write_leases(out)),
            rules: Page::new(PLAIN, move |out| shown.write_rules(out)),
            metrics: metrics.page.clone(),
        }
    }
}

impl Shown {
    /// The leases, one a line, those with the most hits first.
    fn write_leases(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for lease in self.store.top_leases(MAX_LEASES, SystemClock.now()) {
            let LeaseState { key, limit, left, counter, requests_per_second } = lease;
            // The name of a counter consists of values for the most part.
            let key = shown(&key, self.key_values);
            let counter = counter.map_or_else(|| "unknown".to_owned(), |counter| counter.to_string());
            writeln!(
                out,
                "{key}: left={left} counter={counter} limit={limit} requests_per_second={requests_per_second:.0}"
            )?;
        }
        Ok(())
    }

    /// The loaded rules, one a line, after the errors of newer rules that were rejected.
    fn write_rules(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (state, served) = (self.source.state(), self.source.current());
        if let (false, Some((_, errors))) = (state.is_current, &state.last_error) {
            out.write_str(if served.is_some() {
                "# Newer rules were rejected with these errors. The rules below are in force.\n"
            } else {
                "# The rules were rejected with these errors. No rules are in force.\n"
            })?;
            for error in errors {
                writeln!(out, "# {error}")?;
            }
        }
        if let Some(served) = served {
            let mut rules = served.rules.rules();
            rules.sort_unstable_by(|one, other| one.full_key.cmp(&other.full_key));
            for rule in rules {
                writeln!(out, "{rule}")?;
            }
        }
        self.write_overrides(out)
    }

    /// The overrides in force, as comments, which tools that read rules skip.
    fn write_overrides(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let index = &self.overrides;
        if index.is_empty() {
            return Ok(());
        }
        writeln!(out, "# {} overrides (tollgate override list):", index.len())?;
        let (values, mut left, mut written) = (self.key_values, MAX_OVERRIDES, Ok(()));
        index.for_each(|one| {
            let end = one.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
            let target = one.target.shown(values);
            written = writeln!(out, "# override {target}: {}{end}", one.effect());
            left -= 1;
            left > 0 && written.is_ok()
        });
        let more = index.len().saturating_sub(MAX_OVERRIDES);
        if more > 0 {
            writeln!(out, "# and {more} more")?;
        }
        written
    }
}
