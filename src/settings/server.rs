//! What the settings of the stores across a network have in common: where a server is, TLS to it, and how long
//! it is waited for.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    HostPort, duration::duration, parse::InvalidValue, reader::Reader, variable::Setting, vars::Trust,
};

/// How long Envoy waits for an answer unless its `timeout` says otherwise.
const ENVOY_WAITS: Duration = Duration::from_millis(20);

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ServerAddress {
    /// On a port.
    Tcp(HostPort),
    /// On a unix socket.
    Unix(PathBuf),
}

impl Default for ServerAddress {
    fn default() -> Self {
        Self::Tcp(HostPort::default())
    }
}

/// TLS to a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientTls {
    /// CAs; they replace those of the system.
    pub ca: Option<PathBuf>,
    /// `TLS_TRUST_SYSTEM_CAS`: the system's CAs are trusted too.
    pub trust_system: bool,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accept a certificate for another host.
    pub skip_hostname: bool,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The settings of TLS to one store.
pub(super) struct TlsSettings {
    pub(super) ca: &'static Setting<Option<PathBuf>>,
    pub(super) certificate: &'static Setting<Option<PathBuf>>,
    pub(super) key: &'static Setting<Option<PathBuf>>,
    pub(super) skip_hostname: &'static Setting<bool>,
    /// What is set to enable TLS.
    pub(super) asked_for_by: &'static str,
}

impl TlsSettings {
    /// TLS as it is set, whether it is enabled or not.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> ClientTls {
        ClientTls {
            ca: reader.read(self.ca),
            trust_system: Trust::read(reader).in_addition,
            identity: reader.read(self.certificate).zip(reader.read(self.key)),
            skip_hostname: reader.read(self.skip_hostname),
        }
    }

    /// Checks that the files exist and that a certificate has its key, where TLS is enabled; else that none is set.
    pub(super) fn check(&self, reader: &mut Reader<'_>, is_enabled: bool, exists: &dyn Fn(&Path) -> bool) {
        let (certificate, key) = (self.certificate, self.key);
        for setting in [self.ca, certificate, key] {
            let Some(path) = reader.read(setting) else { continue };
            if !is_enabled {
                reader.warn(setting, format!("does nothing: set {} to speak TLS", self.asked_for_by));
            } else if !exists(&path) {
                let refusal =
                    InvalidValue::new("the path of a PEM file").with_hint("nothing is there: is it mounted?");
                reader.refuse(setting, Some(path.display().to_string()), refusal);
            }
        }
        for (one, other) in [(certificate, key), (key, certificate)] {
            if is_enabled && reader.is_set(one) && !reader.is_set(other) {
                let refusal = InvalidValue::new("the path of a PEM file");
                reader.refuse(other, None, refusal.with_hint(format!("{} is set and needs it", one.name)));
            }
        }
    }
}

/// The time limit of an operation, `go_default` in the Go service.
pub(super) fn timeout(
    reader: &mut Reader<'_>,
    setting: &'static Setting<Duration>,
    go_default: Duration,
) -> Duration {
    let usual = duration(setting.default).unwrap_or_default();
    let set = reader.read(setting);
    if set.is_zero() {
        reader.warn(setting, format!("0 would wait for ever: it is taken for {usual:?}"));
        return usual;
    }
    if set > ENVOY_WAITS {
        let default_of = if set == go_default { ", the Go service's default," } else { "" };
        let message = format!(
            "with {set:?}{default_of} an answer may come after Envoy has given up: it waits {ENVOY_WAITS:?} unless \
             the `timeout` of its filter says otherwise. Leave it at {usual:?}, or set it to half of that `timeout`"
        );
        reader.warn(setting, message);
    }
    set
}
