//! The names on the metrics page, and the sinks, from their settings.

use std::{fs, io, sync::Arc};

use tracing::warn;

use super::StartError;
use crate::{
    server::http::admin::Admin,
    settings::{Settings, sinks::DogStatsd},
    telemetry::{
        metrics::{
            Exposition, Stats,
            mapper::{self, Mapped},
        },
        statsd::{self, Dialect, Flushing, Mogrifier, Sink},
    },
};

/// The names on the metrics page. A missing mapper file has no effect: deployments name one that they do not always
/// mount.
pub(super) fn exposition(settings: &Settings) -> Result<Exposition, StartError> {
    let metrics = &settings.metrics;
    let own = Exposition::Own { in_milliseconds: metrics.response_time_in_milliseconds };
    let Some(path) = metrics.mapper.as_ref().filter(|_| metrics.use_prometheus) else { return Ok(own) };
    let name = path.display().to_string();
    let bytes = match fs::read(path) {
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
    let lines =
        |findings: Vec<crate::rules::Diagnostic>| findings.into_iter().map(|finding| finding.to_string());
    let (mapper, warnings) = mapper::read(&name, &bytes).map_err(|errors| {
        StartError(lines(errors).map(|error| format!("PROMETHEUS_MAPPER_YAML: {error}")).collect())
    })?;
    lines(warnings).for_each(|warning| warn!("PROMETHEUS_MAPPER_YAML: {warning}"));
    Ok(Exposition::Mapped(Box::new(Mapped::new(mapper))))
}

/// Starts the sinks.
pub(super) fn start(settings: &Settings, stats: &Arc<Stats>, admin: Admin) -> io::Result<Flushing> {
    let (sinks, tags) = (&settings.sinks, &settings.metrics.tags);
    let statsd = sinks.statsd.as_ref().map(|statsd| Sink {
        target: statsd.address.clone(),
        dialect: Dialect::statsd(tags),
        is_asked_for: statsd.is_asked_for,
    });
    let dog = sinks.dog.as_ref().map(|dog| Sink {
        target: dog.address.clone(),
        dialect: Dialect::dog(&dog.tags, tags, mogrifiers(dog)),
        is_asked_for: true,
    });
    let state: statsd::State = Arc::new(move || admin.gauges());
    statsd::start(stats, &state, settings.metrics.flush_interval, statsd.into_iter().chain(dog).collect())
}

fn mogrifiers(dog: &DogStatsd) -> Vec<Mogrifier> {
    let mogrifier = |mogrifier: &crate::settings::sinks::Mogrifier| {
        Mogrifier::new(mogrifier.pattern.clone(), &mogrifier.name, &mogrifier.tags)
    };
    dog.mogrifiers.iter().map(mogrifier).collect()
}
