//! TLS on the gRPC port, as the settings name it.

use std::path::PathBuf;

use tokio_rustls::rustls::pki_types::ServerName;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcTls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The verification of client certificates, if they are required.
    pub clients: Option<GrpcTlsClients>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcTlsClients {
    pub authorities: PathBuf,
    /// The name that a certificate must have; `None` accepts any.
    pub name: Option<ClientName>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientName {
    Host(ServerName<'static>),
    Uri(String),
    Email(String),
}
