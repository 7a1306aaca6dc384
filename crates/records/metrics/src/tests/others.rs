//! The stores on the page.

use std::time::Duration;

use super::{super::*, reading::parse};
use crate::{Distribution, PoolUsage, StoreKind};

fn pools(samples: &mut Samples<'_>) {
    rows::pools(samples, &[StoreKind::Redis, StoreKind::RedisPerSecond, StoreKind::Memcached].map(pool));
}

fn pool(kind: StoreKind) -> PoolUsage {
    PoolUsage {
        kind,
        connections: 10,
        opened: 11,
        closed: 12,
        reconnects: 13,
        breakers_open: 14,
        queued: 15,
        max_queued: 16,
        max_outstanding: 23,
        shed: [("overloaded", 24), ("late", 25)],
        errors: vec![("timeout", 17), ("connect", 18)],
        last_error: None,
        denied: vec![("expire", 22)],
        without_expiry: 23,
        operation_time: Distribution { buckets: vec![(0.001, 19)], count: 20, sum: 0.5 },
        batch_size: Distribution::default(),
        worker_lateness: Distribution::default(),
    }
}

#[test]
fn each_redis_has_its_own_names_of_the_go_service_and_its_own_label() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&pools));
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        page.get(&(name.to_owned(), labels)).copied()
    };
    for (name, pool) in [("redis_pool", "main"), ("redis_per_second_pool", "per_second")] {
        let of_go = ["cx_active", "cx_total", "cx_local_close"];
        let of_go = of_go.map(|what| value(&format!("ratelimit_{name}_{what}"), &[]));
        assert_eq!(of_go, [10.0, 11.0, 12.0].map(Some), "{pool}");
        let ours = ["reconnects_total", "breakers_open", "queued_checks", "queued_checks_max"];
        let ours = ours.map(|what| value(&format!("tollgate_redis_{what}"), &[("pool", pool)]));
        assert_eq!(ours, [13.0, 14.0, 15.0, 16.0].map(Some), "{pool}");
        let errors = value("tollgate_redis_errors_total", &[("pool", pool), ("kind", "connect")]);
        assert_eq!(errors, Some(18.0), "{pool}");
        let denied = value("tollgate_redis_command_denied_total", &[("pool", pool), ("command", "expire")]);
        let without = value("tollgate_redis_keys_without_expiry_total", &[("pool", pool)]);
        assert_eq!([denied, without], [22.0, 23.0].map(Some), "{pool}");
        let bucket = |bound| {
            let labels = [("pool", pool), ("le", bound)];
            value("tollgate_redis_operation_seconds_bucket", &labels)
        };
        let sum = value("tollgate_redis_operation_seconds_sum", &[("pool", pool)]);
        let [within, all] = ["0.001", "+Inf"].map(bucket);
        assert_eq!([within, all, sum], [19.0, 20.0, 0.5].map(Some), "{pool}");
    }
}

#[test]
fn milliseconds_are_for_the_response_times_of_the_go_service_alone() {
    let stats = Stats::new(StatsOptions::default()).shown(Exposition::Own { in_milliseconds: true });
    stats.service().response_time(Method::ShouldRateLimit).observe(Duration::from_millis(3));
    let page = stats.render(&pools);
    let name = "ratelimit_service_response_time_seconds";
    for line in [
        &format!(r#"{name}_bucket{{grpc_method="ShouldRateLimit",le="0.01"}} 0"#),
        &format!(r#"{name}_bucket{{grpc_method="ShouldRateLimit",le="5"}} 1"#),
        &format!(r#"{name}_sum{{grpc_method="ShouldRateLimit"}} 3"#),
        r#"tollgate_redis_operation_seconds_bucket{pool="main",le="0.001"} 19"#,
    ] {
        assert!(page.lines().any(|seen| seen == line), "{line}\n{page}");
    }
}

#[test]
fn shows_no_redis_metrics_without_redis() {
    let page = parse(&Stats::new(StatsOptions::default()).render(&|_| ()));
    let shown: Vec<_> = page.into_keys().filter(|(name, _)| name.contains("redis")).collect();
    assert_eq!(shown.len(), 0, "{shown:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_metrics_are_those_of_the_collector() {
    use ::prometheus::{core::Collector, process_collector::ProcessCollector};
    let collector = ProcessCollector::for_self();
    let theirs: Vec<_> = collector.desc().iter().map(|desc| (&*desc.fq_name, &*desc.help)).collect();
    assert_eq!(rows::PROCESS.iter().map(|metric| (metric.name, metric.help)).collect::<Vec<_>>(), theirs);
}
