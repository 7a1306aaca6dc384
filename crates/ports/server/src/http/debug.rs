//! The pages of the debug port (rules, leases, metrics), and the page of the metrics port.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};

use super::{Answer, BodyLimit, Handler, SharedPage, text};
use clock::{Clock, SystemClock};
use counters::Store;
use limiter::Handles;
use metrics::{CONTENT_TYPE, LeaseState};
use overrides::{Index, model::timestamp};
use recent::{KeyValues, shown};
use rules_source::Source;

/// What the pages of the debug port show.
pub struct Shown {
    pub source: Arc<Source<Handles>>,
    pub store: Arc<dyn Store>,
    pub overrides: Arc<Index>,
    pub key_values: KeyValues,
}

/// The pages of a port, by their paths.
pub struct Pages {
    by_path: Vec<(String, Arc<SharedPage>)>,
    not_found: String,
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

impl Handler for Pages {
    type Asked = Arc<SharedPage>;

    fn admit(&self, head: &Parts) -> Result<(Arc<SharedPage>, BodyLimit), Answer> {
        match self.by_path.iter().find(|(path, _)| path == head.uri.path()) {
            Some((_, page)) => Ok((page.clone(), BodyLimit::NOTHING)),
            None => Err(text(StatusCode::NOT_FOUND, self.not_found.clone())),
        }
    }

    async fn answer(self: Arc<Self>, page: Arc<SharedPage>, _request: Request<Bytes>) -> Answer {
        page.get().await
    }
}

/// All metrics in the text format of Prometheus.
pub fn metrics_page(
    write: impl Fn(&mut dyn fmt::Write) -> fmt::Result + Send + Sync + 'static,
) -> Arc<SharedPage> {
    SharedPage::new(CONTENT_TYPE, write)
}

/// The metrics port, which has the metrics at this path.
pub fn metrics_port(path: String, metrics: Arc<SharedPage>) -> Pages {
    Pages { not_found: format!("Not found. The metrics are at {path}\n"), by_path: vec![(path, metrics)] }
}

pub fn debug_port(shown: Shown, metrics: Arc<SharedPage>) -> Pages {
    let shown = Arc::new(shown);
    let leases = shown.clone();
    let pages = [
        ("/", SharedPage::new(PLAIN, |out| out.write_str(PAGES))),
        ("/leases", SharedPage::new(PLAIN, move |out| leases.write_leases(out))),
        ("/rlconfig", SharedPage::new(PLAIN, move |out| shown.write_rules(out))),
        ("/stats", metrics),
    ];
    Pages { by_path: pages.map(|(path, page)| (path.to_owned(), page)).into(), not_found: PAGES.to_owned() }
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
        let state = self.source.state();
        let served = self.source.current();
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
        let values = self.key_values;
        for one in index.checkpoint().all().take(MAX_OVERRIDES) {
            let end = one.expires.map(|end| format!(" until {}", timestamp(end))).unwrap_or_default();
            let target = one.target.shown(values);
            writeln!(out, "# override {target}: {}{end}", one.effect())?;
        }
        let more = index.len().saturating_sub(MAX_OVERRIDES);
        if more > 0 {
            writeln!(out, "# and {more} more")?;
        }
        Ok(())
    }
}
