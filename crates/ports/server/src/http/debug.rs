//! The pages of the debug port (rules, leases, metrics), and the page of the metrics port.

use std::{fmt::Write, sync::Arc};

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use http2::Budget;

use super::{Answer, BodyLimit, Pages, internal_error, shared_page::SharedPage, text, typed};
use clock::{Clock, SystemClock};
use counters::Store;
use faults::panics::Panicked;
use limiter::Handles;
use metrics::{CONTENT_TYPE, LeaseState};
use overrides::{Index, model::timestamp};
use recent::{KeyValues, shown};
use rules_source::Source;

pub struct DebugPages {
    source: Arc<Source<Handles>>,
    store: Arc<dyn Store>,
    overrides: Arc<Index>,
    key_values: KeyValues,
    metrics: Arc<MetricsPage>,
    leases: SharedPage,
    rules: SharedPage,
}

/// All metrics in the text format of Prometheus.
pub struct MetricsPage {
    path: String,
    render: Box<dyn Fn() -> String + Send + Sync>,
    shared: SharedPage,
}

/// The maximum number of overrides in `/rlconfig`. There may be a million.
const MAX_OVERRIDES: usize = 1_000;
/// The maximum number of leases in `/leases`.
const MAX_LEASES: usize = 1000;

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
        let page = self.get().await;
        page.map_or_else(|Panicked| internal_error(), |page| typed(StatusCode::OK, CONTENT_TYPE, page))
    }
}

impl MetricsPage {
    /// The metrics, which are served at this path.
    pub fn new(
        path: String,
        memory: &Arc<Budget>,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        Self { path, render: Box::new(render), shared: SharedPage::new(memory) }
    }

    async fn get(self: &Arc<Self>) -> Result<Bytes, Panicked> {
        let rendered = self.clone();
        self.shared.get(move || (rendered.render)()).await
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
        let shown = self.clone();
        let page = match page {
            DebugPage::List => return text(StatusCode::OK, PAGES),
            DebugPage::Leases => self.leases.get(move || shown.leases()).await,
            DebugPage::Rules => self.rules.get(move || shown.rules()).await,
            DebugPage::Metrics => self.metrics.get().await,
        };
        page.map_or_else(|Panicked| internal_error(), |page| text(StatusCode::OK, page))
    }
}

impl DebugPages {
    pub fn new(
        source: Arc<Source<Handles>>,
        store: Arc<dyn Store>,
        overrides: Arc<Index>,
        key_values: KeyValues,
        metrics: Arc<MetricsPage>,
        memory: &Arc<Budget>,
    ) -> Self {
        let (leases, rules) = (SharedPage::new(memory), SharedPage::new(memory));
        Self { source, store, overrides, key_values, metrics, leases, rules }
    }

    /// The leases, one a line, those with the most hits first.
    fn leases(&self) -> String {
        let mut page = String::new();
        for lease in self.store.top_leases(MAX_LEASES, SystemClock.now()) {
            let LeaseState { key, limit, left, counter, requests_per_second } = lease;
            // The name of a counter consists of values for the most part.
            let key = shown(&key, self.key_values);
            let counter = counter.map_or_else(|| "unknown".to_owned(), |counter| counter.to_string());
            // Writing to a String cannot fail.
            let _ = writeln!(
                page,
                "{key}: left={left} counter={counter} limit={limit} requests_per_second={requests_per_second:.0}"
            );
        }
        page
    }

    /// The loaded rules, one a line, after the errors of newer rules that were rejected.
    fn rules(&self) -> String {
        let mut page = String::new();
        let (state, served) = (self.source.state(), self.source.current());
        if let (false, Some((_, errors))) = (state.is_current, &state.last_error) {
            page.push_str(if served.is_some() {
                "# Newer rules were rejected with these errors. The rules below are in force.\n"
            } else {
                "# The rules were rejected with these errors. No rules are in force.\n"
            });
            for error in errors {
                let _ = writeln!(page, "# {error}");
            }
        }
        if let Some(served) = served {
            let mut lines: Vec<String> = served.rules.rules().into_iter().map(ToString::to_string).collect();
            lines.sort_unstable();
            for line in lines {
                let _ = writeln!(page, "{line}");
            }
        }
        self.write_overrides(&mut page);
        page
    }

    /// The overrides in force, as comments, which tools that read rules skip.
    fn write_overrides(&self, page: &mut String) {
        let index = &self.overrides;
        if index.is_empty() {
            return;
        }
        let _ = writeln!(page, "# {} overrides (tollgate override list):", index.len());
        let (values, mut left) = (self.key_values, MAX_OVERRIDES);
        index.for_each(|one| {
            let end = one.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
            let target = one.target.with_values(|value| shown(value, values).into_owned());
            let _ = writeln!(page, "# override {target}: {}{end}", one.action);
            left -= 1;
            left > 0
        });
        let more = index.len().saturating_sub(MAX_OVERRIDES);
        if more > 0 {
            let _ = writeln!(page, "# and {more} more");
        }
    }
}
