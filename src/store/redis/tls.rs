//! TLS to a Redis: what its variables are called, and how its files are read.
//!
//! `wire` shakes hands with it. `topology` takes the same files as they are, for the `redis` crate.

use crate::{
    net::tls::{Client, Words as Names},
    settings::redis::RedisTls,
    store::remote::tls::{self, Words},
};

/// What to do about a server that speaks plain text.
pub(super) const WITHOUT: &str =
    "if its port speaks plain text, unset REDIS_TLS (REDIS_PERSECOND_TLS) and write redis:// for rediss://";

/// What to do about a server that speaks TLS.
pub(super) const WITH: &str = "if its port speaks TLS, set REDIS_TLS=true (REDIS_PERSECOND_TLS)";

/// What is said of TLS to a Redis.
pub(super) static WORDS: Words = Words {
    tls: Names {
        ca: "REDIS_TLS_CACERT",
        certificate: "REDIS_TLS_CLIENT_CERT",
        key: "REDIS_TLS_CLIENT_KEY",
        other_host: "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true takes a certificate of another host",
        plain_text: WITHOUT,
    },
    with: WITH,
};

/// Reads the files.
///
/// # Errors
/// All that is wrong with them, each with its variable and its path.
pub(super) fn load(settings: &RedisTls) -> Result<Client, Vec<String>> {
    tls::load(settings, &WORDS)
}
