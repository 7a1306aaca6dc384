//! TLS to a server of counters: what its settings ask of `tls`, and what is particular to stores.
//!
//! `wire` shakes hands with it. The variables' names and what to do about servers that speak another language
//! are each store's own [`Words`].

use tokio_rustls::rustls::client::Resumption;

use crate::{
    net::tls::{self, Client, Trusted, Wanted},
    settings::StoreTls,
};

/// What the variables are called, and what to do about a server that speaks the other language.
pub(in crate::store) struct Words {
    /// Of the files, and of a server that speaks plain text.
    pub(in crate::store) tls: tls::Words,
    /// What to do about a server that speaks TLS.
    pub(in crate::store) with: &'static str,
}

/// Reads the files.
///
/// # Errors
/// All that is wrong with them, each with its variable and its path.
pub(in crate::store) fn load(settings: &StoreTls, words: &Words) -> Result<Client, Vec<String>> {
    let wanted = Wanted {
        trusted: Trusted::by(settings.ca.as_deref(), settings.trust_system),
        identity: settings.identity.as_ref().map(|(certificate, key)| (&**certificate, &**key)),
        any_host: settings.skip_hostname,
    };
    let mut client = tls::load(&wanted, &words.tls)?;
    // Connections last, so that there is little to save; and a memcached that wants certificates breaks off
    // every session that is to go on, because it never says whose session it is.
    client.config.resumption = Resumption::disabled();
    Ok(client)
}
