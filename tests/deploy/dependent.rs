//! A service with memcached and a collector of spans and metrics, and the loss of either.

use support::{
    client::request,
    memcached::{Memcached, setup},
    receiver::Receiver,
    server::Server,
};

use super::read;

/// The size of the queue and of a batch of spans.
const ROOM: usize = 5;

/// The service and its dependencies.
pub(super) struct Dependent {
    pub(super) server: Server,
    memcached: Memcached,
    collector: Option<Receiver>,
}

impl Dependent {
    /// Starts a healthy service: its calls are counted and exported.
    pub(super) fn start() -> Self {
        let memcached = Memcached::single();
        let collector = Receiver::start(false, None);
        let server = setup(&memcached.address())
            .rules("shop.yaml", &read("deploy/kubernetes/rules/shop.yaml"))
            .env("TRACING_ENABLED", "true")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", collector.port))
            .env("OTEL_METRICS_EXPORTER", "otlp")
            .env("OTEL_METRIC_EXPORT_INTERVAL", "20")
            .env("OTEL_BSP_SCHEDULE_DELAY", "20")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", &ROOM.to_string())
            .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &ROOM.to_string())
            .start_healthy();
        let dependent = Self { server, memcached, collector: Some(collector) };
        dependent.ask();
        dependent.collector.as_ref().expect("it is there").wait_for(1);
        dependent
    }

    /// Stops the collector, and makes more spans than the queue holds.
    pub(super) fn lose_the_collector(&mut self) {
        self.collector = None;
        for _ in 0..4 * ROOM {
            self.ask();
        }
    }

    pub(super) fn lose_memcached(&mut self) {
        self.memcached.kill();
    }

    fn ask(&self) {
        let asked = request("shop", &[&[("client_id", "alice")]]);
        self.server.ask(asked).expect("memcached counts without a collector");
    }
}
