//! The sinks of metrics: statsd, DogStatsD, and a collector.
//!
//! The Go service has one sink at a time; here each is enabled by itself.

use regex::Regex;

use super::{
    otlp,
    reader::Reader,
    values::{StatsdProtocol, tags},
    variable::Var,
    vars::{self, Metrics},
};
use exporters::{
    otlp::metrics::MetricsExport,
    statsd::{
        Dialect, Sink,
        settings::{Mogrifier, SinkAddress, Tags},
    },
};
use net::HostPort;

#[derive(Clone, PartialEq, Debug)]
pub struct Sinks {
    pub statsd: Option<Sink>,
    pub dog: Option<Sink>,
    pub otlp: Option<MetricsExport>,
}

pub(super) fn read(reader: &mut Reader<'_>, metrics: &Metrics) -> Sinks {
    let shared = HostPort { host: metrics.statsd_host.clone(), port: metrics.statsd_port }.or_localhost();
    let statsd = statsd(reader, metrics, shared.clone());
    let dog = dog(reader, metrics, shared);
    let otlp = otlp::metrics(reader);
    let sinks = Sinks {
        statsd: statsd.filter(|_| !metrics.disable),
        dog: dog.filter(|_| !metrics.disable),
        otlp: otlp.filter(|_| !metrics.disable),
    };
    if sinks.statsd.is_none() && sinks.dog.is_none() {
        let condition = "without statsd or DogStatsD; Prometheus adds labels where it scrapes";
        reader.warn_unused(&[&vars::EXTRA_TAGS], condition);
    }
    sinks
}

/// The Go service enables statsd by default, and stops if another sink is enabled too. Here statsd is the default only if
/// no other sink is set.
fn statsd(reader: &Reader<'_>, metrics: &Metrics, address: HostPort) -> Option<Sink> {
    let asking: [&Var; 4] =
        [&vars::USE_STATSD, &vars::STATSD_HOST, &vars::STATSD_PORT, &vars::STATSD_PROTOCOL];
    let is_another = reader.is_set(&vars::USE_PROMETHEUS) && metrics.use_prometheus || metrics.use_dog_statsd;
    let is_on = metrics.use_statsd && (reader.is_set(&vars::USE_STATSD) || !is_another);
    let target = match &metrics.statsd_protocol {
        StatsdProtocol::Tcp => SinkAddress::Tcp(address),
        StatsdProtocol::Udp => SinkAddress::Udp(address),
        StatsdProtocol::Unix(path) => SinkAddress::Unix(path.clone()),
    };
    let is_configured = asking.into_iter().any(|var| reader.is_set(var));
    is_on.then(|| Sink { target, dialect: Dialect::statsd(&metrics.tags), is_configured })
}

fn dog(reader: &mut Reader<'_>, metrics: &Metrics, shared: HostPort) -> Option<Sink> {
    if !metrics.use_dog_statsd {
        return None;
    }
    // The tags that Datadog's own clients add.
    let own = [
        ("dd.internal.entity_id", &metrics.entity_id),
        ("env", &metrics.env),
        ("service", &metrics.service),
        ("version", &metrics.version),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_empty());
    let own: Tags = own.map(|(tag, value)| (tag.to_owned(), value.clone())).collect();
    Some(Sink {
        target: metrics.dog_statsd_address.clone().unwrap_or(SinkAddress::Udp(shared)),
        dialect: Dialect::dog(&own, &metrics.tags, mogrifiers(reader, &metrics.mogrifiers)),
        is_configured: true,
    })
}

fn mogrifiers(reader: &mut Reader<'_>, names: &str) -> Vec<Mogrifier> {
    let mut mogrifiers = Vec::new();
    for name in names.split(',').filter(|_| !names.is_empty()) {
        match mogrifier(name, reader) {
            Ok(mogrifier) => mogrifiers.push(mogrifier),
            Err(hint) => {
                let expected = "comma-separated names, each with DOG_STATSD_MOGRIFIER_<NAME>_PATTERN, _NAME and, \
                    optionally, _TAGS";
                reader.conflict(&vars::USE_DOG_STATSD_MOGRIFIERS, expected, hint);
            }
        }
    }
    mogrifiers
}

fn mogrifier(name: &str, reader: &Reader<'_>) -> Result<Mogrifier, String> {
    let variable = |part: &str| format!("DOG_STATSD_MOGRIFIER_{}_{part}", name.to_uppercase());
    let required = |part: &str| {
        let value = reader.value_of(&variable(part)).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("{} is not set", variable(part)))
    };
    let pattern = required("PATTERN")?;
    let pattern = Regex::new(&pattern).map_err(|error| {
        let error = error.to_string();
        let error = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("{}={pattern:?}: invalid regular expression: {error}", variable("PATTERN"))
    })?;
    let given = reader.value_of(&variable("TAGS")).unwrap_or_default();
    let is_complete = |tags: &Tags| tags.iter().all(|(key, value)| !key.is_empty() && !value.is_empty());
    let tags = tags(&given).ok().filter(is_complete);
    let tags = tags.ok_or_else(|| format!("{}={given:?}: expected key:value,key:value", variable("TAGS")))?;
    Ok(Mogrifier { pattern, name: required("NAME")?, tags })
}
