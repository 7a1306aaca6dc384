//! A service with TLS and a control plane, and the failures of either.

use std::{
    io::Write as _,
    net::TcpStream,
    time::{Duration, SystemTime},
};

use rcgen::date_time_ymd;
use serde_json::json;

use support::{
    control_plane::ControlPlane,
    grpc_tls::{Authority, Files},
    server::Server,
};

/// The service and its dependencies.
pub(super) struct Secured {
    pub(super) server: Server,
    control_plane: Option<ControlPlane>,
    authority: Authority,
    files: Files,
}

impl Secured {
    /// Starts a healthy service.
    pub(super) fn start() -> Self {
        let authority = Authority::new("the authority");
        let files = Files::new(&authority.server());
        let control_plane = ControlPlane::start();
        control_plane.publish("1", &[]);
        let setup = files.setup().env("CONFIG_TYPE", "GRPC_XDS_SOTW");
        let server = setup.env("CONFIG_GRPC_XDS_SERVER_URL", &control_plane.address).start();
        Self { server, control_plane: Some(control_plane), authority, files }
    }

    /// Replaces the certificate by one that expires in three days.
    pub(super) fn serve_what_expires_soon(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let end = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(3 * 86_400);
        let pair = self.authority.sign_with(&["localhost"], |params| params.not_after = end);
        self.files.put_pair("tls", &pair);
    }

    /// Replaces the key by that of another certificate.
    pub(super) fn confuse_the_keys(&self) {
        self.files.put("tls.key", &self.authority.server().key);
    }

    /// The control plane sends invalid rules.
    pub(super) fn publish_nonsense(&self) {
        let control_plane = self.control_plane.as_ref().expect("it is there");
        control_plane.publish("2", &[json!({"hex": "ff"})]);
    }

    pub(super) fn lose_the_control_plane(&mut self) {
        self.control_plane = None;
    }

    /// A client connects without TLS.
    pub(super) fn speak_no_tls(&self) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.server.ports.grpc)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    }
}
