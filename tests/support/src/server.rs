//! Starts the real binary with settings, rules files and free ports.

use std::{
    collections::BTreeMap,
    env, fs,
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::Status;

use super::{
    PATIENCE, client::Client, clock::Clock, eventually, holds, http, ports::free_port, process::Process,
    redis::Env, within,
};

/// The tested program.
pub const BINARY: &str = env!("TOLLGATE_BINARY");

/// The default implementation of the gRPC port.
pub const GRPC_SERVER: &str = "TOLLGATE_TEST_GRPC_SERVER";

/// Runs modules of this test binary against the reference implementation: at least so many tests, and all pass. In that run
/// itself it does nothing.
pub fn pass_on_tonic(modules: &[&str], at_least: usize) {
    if env::var_os(GRPC_SERVER).is_some() {
        return;
    }
    let mut tests = Command::new(env::current_exe().unwrap());
    let run = tests.args(modules).arg("--test-threads=2").env(GRPC_SERVER, "tonic").output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    let passed = text.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(
        passed.is_some_and(|passed| passed.parse().is_ok_and(|passed: usize| passed >= at_least)),
        "{text}"
    );
}

/// A running service; killed when dropped.
pub struct Server {
    pub process: Process,
    pub ports: Ports,
    dir: TempDir,
    socket: Option<PathBuf>,
    /// The port of the admin API, if it has one of 127.0.0.1.
    admin: Option<u16>,
}

/// The ports of a service on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub http: u16,
    pub grpc: u16,
    pub debug: u16,
    pub metrics: u16,
}

/// The settings and files of a service.
#[derive(Clone)]
pub struct Setup {
    program: PathBuf,
    args: Vec<String>,
    rules: Vec<(String, String)>,
    env: BTreeMap<String, String>,
    /// The working directory, instead of a temporary one.
    working_dir: Option<PathBuf>,
    ports: Option<Ports>,
    clock: Clock,
}

impl Server {
    /// Starts a service with one rules file.
    pub fn start(rules: &str) -> Self {
        Setup::new().rules("rules.yaml", rules).start()
    }

    /// Calls `ShouldRateLimit` on a new connection.
    pub fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client().ask(request)
    }

    /// Calls it, and leaves after 50 ms without an answer.
    pub fn ask_and_leave(&self, asked: RateLimitRequest) {
        let reset = self.client().call(|channel| async move {
            let mut client = RateLimitServiceClient::new(channel);
            timeout(Duration::from_millis(50), client.should_rate_limit(asked)).await
        });
        assert!(reset.is_err(), "{reset:?}");
    }

    /// A connection to the gRPC port or socket.
    pub fn client(&self) -> Client {
        let address = match &self.socket {
            Some(path) => format!("unix:{}", path.display()),
            None => format!("http://127.0.0.1:{}", self.ports.grpc),
        };
        Client::connect(&address).unwrap_or_else(|error| panic!("{error}\n{}", self.process.log()))
    }

    /// The samples of the Prometheus page: `name{labels}` and value.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let page = http::get(self.ports.metrics, "/metrics").text();
        let samples = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        samples.filter_map(|line| line.rsplit_once(' ')).filter_map(read_sample).collect()
    }

    /// The value of a sample, `name{labels}`; 0 if it is absent.
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics().get(name).copied().unwrap_or_default()
    }

    /// The value of a sample that counts.
    pub fn count(&self, name: &str) -> usize {
        self.metric(name).to_string().parse().expect("a whole number")
    }

    /// The lines of `/rlconfig`, sorted.
    pub fn rules_shown(&self) -> Vec<String> {
        let page = http::get(self.ports.debug, "/rlconfig").text();
        let mut lines: Vec<_> = page.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Waits until `/rlconfig` shows a text.
    pub fn wait_for_rule(&self, text: &str) {
        eventually("the rules are loaded", || {
            let shown = self.rules_shown().join("\n");
            if shown.contains(text) {
                Ok(())
            } else {
                Err(format!("no {text:?} in {shown:?}\n{}", self.process.log()))
            }
        });
    }

    /// True if `/healthcheck` returns 200.
    pub fn is_healthy(&self) -> bool {
        http::get(self.ports.http, "/healthcheck").status == 200
    }

    /// Waits until it is healthy.
    pub fn wait_until_healthy(&self) {
        eventually("the service is healthy", || holds(self.is_healthy(), || self.process.log()));
    }

    /// Waits until the log contains all of these.
    pub fn wait_for_log(&self, texts: &[&str]) {
        self.process.wait_for_log(texts);
    }

    /// Stops the service and returns its whole log, for what it must not contain. See [`Process::final_log`].
    pub fn final_log(mut self) -> String {
        self.process.final_log()
    }

    /// The directory of the rules files.
    pub fn rules_dir(&self) -> PathBuf {
        rules_dir(self.dir.path())
    }

    /// The directory of this service.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a rules file atomically.
    pub fn write(&self, name: &str, text: &str) {
        put(self.dir.path(), name, text);
    }
}

impl Setup {
    /// No rules, and the settings for a fast and isolated service.
    pub fn new() -> Self {
        let env = [
            ("ADMIN_ADDR", "off"),
            ("REPLICA_SYNC", "false"),
            ("BACKEND_TYPE", "memory"),
            ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
            ("LOG_LEVEL", "warn"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("SHUTDOWN_DELAY", "0s"),
            ("STATS_FLUSH_INTERVAL", "1s"),
            ("USE_PROMETHEUS", "true"),
            ("USE_STATSD", "false"),
        ];
        let setup = Self {
            program: PathBuf::from(BINARY),
            args: Vec::new(),
            rules: Vec::new(),
            env: BTreeMap::new(),
            working_dir: None,
            ports: None,
            clock: Clock::current(),
        };
        let setup = env.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        match std::env::var(GRPC_SERVER) {
            Ok(implementation) => setup.env("GRPC_SERVER", &implementation),
            Err(_) => setup,
        }
    }

    /// Only ports are set, in an existing directory: as in the README's first run.
    pub fn bare(working_dir: &Path) -> Self {
        Self { env: BTreeMap::new(), working_dir: Some(working_dir.to_owned()), ..Self::new() }
    }

    /// Starts another program, or with arguments.
    pub fn program(mut self, path: &Path, args: &[&str]) -> Self {
        path.clone_into(&mut self.program);
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self
    }

    /// Adds a rules file.
    pub fn rules(mut self, name: &str, text: &str) -> Self {
        self.rules.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets variables.
    pub fn envs(self, env: &Env) -> Self {
        env.iter().fold(self, |setup, (name, value)| setup.env(name, value))
    }

    /// Counts in this Redis, and is unhealthy without it. The timeout is long enough for a busy machine; a test about
    /// timeouts sets or unsets `REDIS_TIMEOUT`.
    pub fn redis(self, env: &Env) -> Self {
        let fixed = [
            ("BACKEND_TYPE", "redis"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("REDIS_TIMEOUT", "5s"),
            ("REDIS_CONNECT_TIMEOUT", "5s"),
        ];
        fixed.iter().fold(self, |setup, (name, value)| setup.env(name, value)).envs(env)
    }

    /// Listens on the ports of an earlier service.
    pub fn ports(self, ports: Ports) -> Self {
        Self { ports: Some(ports), ..self }
    }

    /// Leaves a variable at its default.
    pub fn unset(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// Starts the service and waits until it is healthy.
    pub fn start_healthy(self) -> Server {
        let server = self.start();
        server.wait_until_healthy();
        server
    }

    /// Starts the service and waits until it listens.
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|log| panic!("the service did not start:\n{log}"))
    }

    /// Starts the service and waits until it listens. The error is its log.
    pub fn try_start(self) -> Result<Server, String> {
        let mut server = self.launch();
        let listening = within(PATIENCE, || server.probe());
        match listening {
            Ok(Ok(())) => Ok(server),
            Ok(Err(ended)) => Err(ended),
            Err(last) => Err(format!("{last}\n{}", server.process.log())),
        }
    }

    /// The log of a service that ends by itself, because it cannot start so.
    pub fn refused(self) -> String {
        let mut server = self.launch();
        let status = server.process.wait(PATIENCE).expect("the process exits");
        assert!(!status.success());
        server.process.final_log()
    }

    /// Starts the service without waiting.
    pub fn launch(self) -> Server {
        let dir =
            tempfile::Builder::new().prefix("tollgate-test-").tempdir().expect("cannot create a directory");
        fs::create_dir_all(rules_dir(dir.path())).expect("cannot create the rules directory");
        for (name, text) in &self.rules {
            put(dir.path(), name, text);
        }
        let ports = self.ports.unwrap_or_else(Ports::free);
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear();
        command.envs(["PATH", "HOME"].into_iter().filter_map(|name| Some((name, env::var_os(name)?))));
        match &self.working_dir {
            Some(working_dir) => command.current_dir(working_dir),
            None => command.current_dir(dir.path()).env("RUNTIME_ROOT", dir.path()),
        };
        command.envs(ports.env()).envs(&self.env);
        self.clock.apply(&mut command);
        let process = Process::start(command, &dir.path().join("log"));
        let socket = self.env.get("GRPC_UDS").map(PathBuf::from);
        let admin =
            self.env.get("ADMIN_ADDR").and_then(|address| address.strip_prefix("127.0.0.1:")?.parse().ok());
        Server { process, ports, dir, socket, admin: admin.filter(|port| *port != 0) }
    }
}

impl Server {
    /// Probes the ports: listening, not yet (retry), or exited (`Ok(Err(log))`).
    fn probe(&mut self) -> Result<Result<(), String>, String> {
        if let Some(status) = self.process.exited() {
            return Ok(Err(format!("{status}\n{}", self.process.log())));
        }
        let Ports { http, grpc, debug, metrics } = self.ports;
        let grpc_opens = match &self.socket {
            Some(path) => UnixStream::connect(path).map(drop).map_err(|error| error.to_string()),
            None => opens(grpc),
        };
        // The service binds the port of the admin API last.
        let others = [http, debug, metrics].into_iter().chain(self.admin);
        grpc_opens.and_then(|()| others.into_iter().try_for_each(opens)).map(Ok)
    }
}

impl Ports {
    fn free() -> Self {
        Self { http: free_port(), grpc: free_port(), debug: free_port(), metrics: free_port() }
    }

    fn env(self) -> [(&'static str, String); 7] {
        let host = || "127.0.0.1".to_owned();
        [
            ("HOST", host()),
            ("PORT", self.http.to_string()),
            ("GRPC_HOST", host()),
            ("GRPC_PORT", self.grpc.to_string()),
            ("DEBUG_HOST", host()),
            ("DEBUG_PORT", self.debug.to_string()),
            ("PROMETHEUS_ADDR", format!("127.0.0.1:{}", self.metrics)),
        ]
    }
}

fn opens(port: u16) -> Result<(), String> {
    let address = ([127, 0, 0, 1], port).into();
    let opened = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    opened.map(drop).map_err(|error| format!("port {port}: {error}"))
}

fn rules_dir(root: &Path) -> PathBuf {
    root.join("ratelimit").join("config")
}

/// Writes a rules file atomically.
fn put(root: &Path, name: &str, text: &str) {
    let whole = root.join("being-written");
    fs::write(&whole, text).expect("cannot write a rules file");
    fs::rename(&whole, rules_dir(root).join(name)).expect("cannot rename a rules file");
}

fn read_sample((name, value): (&str, &str)) -> Option<(String, f64)> {
    Some((name.to_owned(), value.parse().ok()?))
}
