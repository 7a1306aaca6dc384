//! The settings of those who are sent statistics: statsd and DogStatsD.
//!
//! Called by [`Settings::read`](super::Settings::read). The variables are the Go service's, which has one
//! sink at a time; here each of them is on by itself.

use std::{fmt, path::PathBuf, time::Duration};

use regex::Regex;

use super::{
    HostPort,
    address::host_port,
    duration,
    parse::{InvalidValue, Value},
    reader::Reader,
    vars::{self, Metrics, Var},
};

/// Who is sent statistics.
#[derive(Clone, PartialEq, Debug)]
pub struct Sinks {
    /// How often; never zero.
    pub interval: Duration,
    /// Tags of everything that is sent.
    pub tags: Tags,
    /// A statsd.
    pub statsd: Option<Statsd>,
    /// An agent that reads DogStatsD.
    pub dog: Option<DogStatsd>,
}

/// Keys and values.
pub type Tags = Vec<(String, String)>;

/// A statsd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statsd {
    /// Where it listens.
    pub address: SinkAddress,
    /// False when it is only the default, and it is no trouble that nobody is there.
    pub is_asked_for: bool,
}

/// An agent that reads DogStatsD.
#[derive(Clone, PartialEq, Debug)]
pub struct DogStatsd {
    /// Where it listens.
    pub address: SinkAddress,
    /// Tags that Datadog's own clients add.
    pub tags: Tags,
    /// What to make of names: the first that matches counts.
    pub mogrifiers: Vec<Mogrifier>,
}

/// Where a sink listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SinkAddress {
    /// On a TCP port.
    Tcp(HostPort),
    /// On a UDP port.
    Udp(HostPort),
    /// On a unix socket, of datagrams or a stream.
    Unix(PathBuf),
}

impl fmt::Display for SinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(HostPort { host, port }) => write!(f, "{host}:{port} (TCP)"),
            Self::Udp(HostPort { host, port }) => write!(f, "{host}:{port} (UDP)"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A name of statsd made into another name and tags.
#[derive(Clone, PartialEq, Debug)]
pub struct Mogrifier {
    /// The names that it is for.
    pub pattern: Pattern,
    /// The name they get.
    pub name: String,
    /// The tags they get.
    pub tags: Tags,
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// The expression.
    #[must_use]
    pub fn regex(&self) -> &Regex {
        &self.0
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// Which of an address's forms `STATSD_PROTOCOL` selects.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// A unix socket.
    Unix(PathBuf),
}

impl Value for Protocol {
    fn parse(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => socket_path(text).map(Self::Unix).ok_or_else(|| {
                InvalidValue::new("tcp, udp, or the path of a unix socket, which begins with /")
            }),
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>, metrics: Metrics) -> Sinks {
    let shared = reachable(HostPort { host: metrics.statsd_host.clone(), port: metrics.statsd_port });
    let statsd = statsd(reader, &metrics, shared.clone());
    let dog = dog(reader, &metrics, shared);
    let sinks = Sinks {
        interval: metrics.flush_interval,
        tags: metrics.tags,
        statsd: statsd.filter(|_| !metrics.disable),
        dog: dog.filter(|_| !metrics.disable),
    };
    if !sinks.tags.is_empty() && sinks.statsd.is_none() && sinks.dog.is_none() {
        let message = "is for statsd and DogStatsD, and neither is sent anything: \
            Prometheus adds labels of its own where it scrapes";
        reader.warn(&vars::EXTRA_TAGS, message);
    }
    sinks
}

/// The Go service has statsd on by default, and ends when another sink is on as well. So it is the
/// default here only where nothing else is set.
fn statsd(reader: &Reader<'_>, metrics: &Metrics, address: HostPort) -> Option<Statsd> {
    let asking: [&Var; 4] =
        [&vars::USE_STATSD, &vars::STATSD_HOST, &vars::STATSD_PORT, &vars::STATSD_PROTOCOL];
    let is_another = reader.is_set(&vars::USE_PROMETHEUS) && metrics.use_prometheus || metrics.use_dog_statsd;
    let is_on = metrics.use_statsd && (reader.is_set(&vars::USE_STATSD) || !is_another);
    let address = match &metrics.statsd_protocol {
        Protocol::Tcp => SinkAddress::Tcp(address),
        Protocol::Udp => SinkAddress::Udp(address),
        Protocol::Unix(path) => SinkAddress::Unix(path.clone()),
    };
    is_on.then(|| Statsd { address, is_asked_for: asking.into_iter().any(|var| reader.is_set(var)) })
}

fn dog(reader: &mut Reader<'_>, metrics: &Metrics, shared: HostPort) -> Option<DogStatsd> {
    if !metrics.use_dog_statsd {
        return None;
    }
    // The tags that Datadog's own clients add.
    let tags = [
        ("dd.internal.entity_id", &metrics.entity_id),
        ("env", &metrics.env),
        ("service", &metrics.service),
        ("version", &metrics.version),
    ];
    let tags = tags.into_iter().filter(|(_, value)| !value.is_empty());
    Some(DogStatsd {
        address: metrics.dog_statsd_address.clone().unwrap_or(SinkAddress::Udp(shared)),
        tags: tags.map(|(tag, value)| (tag.to_owned(), value.clone())).collect(),
        mogrifiers: mogrifiers(reader, &metrics.mogrifiers),
    })
}

fn mogrifiers(reader: &mut Reader<'_>, names: &str) -> Vec<Mogrifier> {
    let mut mogrifiers = Vec::new();
    for name in names.split(',').filter(|_| !names.is_empty()) {
        match mogrifier(name, &|variable| reader.value_of(variable)) {
            Ok(mogrifier) => mogrifiers.push(mogrifier),
            Err(why) => {
                let accepted = "names with commas between, each with its DOG_STATSD_MOGRIFIER_<NAME>_PATTERN, \
                    _NAME and, if it is to add some, _TAGS";
                let refusal = InvalidValue::new(accepted).with_hint(why);
                reader.refuse(&vars::USE_DOG_STATSD_MOGRIFIERS, Some(names.to_owned()), refusal);
            }
        }
    }
    mogrifiers
}

fn mogrifier(name: &str, value_of: &dyn Fn(&str) -> Option<String>) -> Result<Mogrifier, String> {
    let variable = |part: &str| format!("DOG_STATSD_MOGRIFIER_{}_{part}", name.to_uppercase());
    let needed = |part: &str| {
        let value = value_of(&variable(part)).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("{} is not set", variable(part)))
    };
    let pattern = needed("PATTERN")?;
    let pattern = Regex::new(&pattern).map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        format!("{}={pattern:?} is no regular expression: {why}", variable("PATTERN"))
    })?;
    let given = value_of(&variable("TAGS")).unwrap_or_default();
    let tags =
        tags(&given).ok().filter(|tags| tags.iter().all(|(key, value)| !key.is_empty() && !value.is_empty()));
    let tags =
        tags.ok_or_else(|| format!("{}={given:?} is not of the form key:value,key:value", variable("TAGS")))?;
    Ok(Mogrifier { pattern: Pattern(pattern), name: needed("NAME")?, tags })
}

/// Keys and values: `key:value,key:value`. The last value of a key counts.
pub(super) fn tags(text: &str) -> Result<Tags, InvalidValue> {
    let mut tags = Tags::new();
    for pair in text.split(',').filter(|_| !text.trim().is_empty()) {
        let parts: Vec<&str> = pair.split(':').collect();
        let [key, value] = parts[..] else {
            let refusal = InvalidValue::new("tags such as key:value,key:value");
            return Err(refusal.with_hint(format!("one colon is expected in {pair:?}")));
        };
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        tags.retain(|(known, _)| *known != key);
        tags.push((key, value));
    }
    Ok(tags)
}

/// A duration above 0.
pub(super) fn interval(text: &str) -> Result<Duration, InvalidValue> {
    let interval = duration(text)?;
    if interval.is_zero() {
        return Err(InvalidValue::new("a duration above 0").with_hint("10s is the default"));
    }
    Ok(interval)
}

/// The address of an agent, or nothing.
pub(super) fn dog_address(text: &str) -> Result<Option<SinkAddress>, InvalidValue> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(path) = socket_path(text) {
        return Ok(Some(SinkAddress::Unix(path)));
    }
    let address = host_port(text.strip_prefix("udp://").unwrap_or(text)).map_err(|_| {
        InvalidValue::new("an address such as agent:8125, or the path of a unix socket, which begins with /")
    })?;
    Ok(Some(SinkAddress::Udp(reachable(address))))
}

/// No host is this one.
fn reachable(address: HostPort) -> HostPort {
    let host = if address.host.is_empty() { vars::STATSD_HOST.default.to_owned() } else { address.host };
    HostPort { host, ..address }
}

/// A path, also in the form in which Datadog's clients are given it.
fn socket_path(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    path.starts_with('/').then(|| path.into())
}
