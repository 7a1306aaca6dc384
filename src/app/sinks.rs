//! The names of metrics on the page for Prometheus, and the sinks.

use std::{io, sync::Arc};

use tracing::warn;

use super::{StartError, gauges::documentation, parts::App};
use exporters::{
    otlp,
    statsd::{self, Flushing},
};
use faults::files;
use metrics::{
    Exposition,
    mapper::{self, Mapped},
};
use settings::Settings;
use text::diagnostics::Diagnostic;

const MAX_MAPPER_BYTES: u64 = 16 << 20;

/// The names on the metrics page. A missing mapper file is only a warning, as some deployments set it without mounting
/// it.
pub(super) fn exposition(settings: &Settings) -> Result<Exposition, StartError> {
    let metrics = &settings.metrics;
    let own = Exposition::Own { in_milliseconds: metrics.response_time_in_milliseconds };
    let Some(path) = metrics.mapper.as_ref().filter(|_| metrics.use_prometheus) else { return Ok(own) };
    let name = path.display().to_string();
    let bytes = match files::read(path, MAX_MAPPER_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            warn!("PROMETHEUS_MAPPER_YAML: {name} does not exist: metrics have their default names");
            return Ok(own);
        }
        Err(error) => {
            let why = format!("PROMETHEUS_MAPPER_YAML: {name} cannot be read: {error}");
            return Err(StartError(vec![why]));
        }
    };
    let prefixed = |diagnostic: Diagnostic| format!("PROMETHEUS_MAPPER_YAML: {diagnostic}");
    let (mapper, warnings) = mapper::read(&name, &bytes)
        .map_err(|errors| StartError(errors.into_iter().map(prefixed).collect()))?;
    warnings.into_iter().map(prefixed).for_each(|warning| warn!("{warning}"));
    Ok(Exposition::Mapped(Box::new(Mapped::new(mapper, documentation()))))
}

pub(super) fn start(settings: &Settings, app: &Arc<App>) -> Result<Flushing, StartError> {
    let shown = app.clone();
    let gauges: statsd::SharedGauges = Arc::new(move |samples| shown.sample(samples));
    let sinks = settings.sinks.statsd.iter().chain(&settings.sinks.dog).cloned().collect();
    let mut flushing = statsd::start(&app.stats, &gauges, settings.metrics.flush_interval, sinks)
        .map_err(StartError::system)?;
    if let Some(export) = &settings.sinks.otlp {
        otlp::metrics::start(&app.stats, &gauges, export, &mut flushing).map_err(StartError)?;
    }
    Ok(flushing)
}
