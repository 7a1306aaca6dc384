//! RLQS: limits that are divided among Envoys. The streams of these are played by tests; `envoy::quota` has real ones.

use std::time::{Duration, Instant};

use prost::Message as _;
use proto::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use tonic::Code;

use support::{
    client::request,
    eventually,
    frames::{Connection, DATA, END_STREAM},
    holds, http,
    ports::free_port,
    quotas::{Assigned, PATH, Quotas, usage},
    raw::framed,
    server::{Server, Setup},
};

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - key: tenant
    descriptors:
    - {key: path, rate_limit: {unit: hour, requests_per_unit: 600}}
";

const ANN: &[(&str, &str)] = &[("user", "ann")];

fn setup() -> Setup {
    Setup::new().rules("edge.yaml", RULES)
}

/// Runs a test with both implementations of the gRPC port.
fn each(test: impl Fn(Setup)) {
    for implementation in ["fast", "tonic"] {
        test(setup().env("GRPC_SERVER", implementation));
    }
}

fn refused(server: &Server, reason: &str) -> usize {
    server.count(&format!("tollgate_quota_refused_total{{reason=\"{reason}\"}}"))
}

fn is_tokens(assigned: Assigned) -> bool {
    matches!(assigned, Assigned::Tokens(1..))
}

#[test]
fn a_bucket_is_assigned_tokens_within_its_limit_whatever_the_order_of_its_id() {
    each(|setup| {
        let server = setup.start();
        let mut quotas = Quotas::open(&server);
        quotas.report("edge", &[(ANN, 1, 0)]);
        let Assigned::Tokens(tokens) = quotas.wait_for(ANN, is_tokens) else { unreachable!() };
        assert!(tokens <= 1000, "{tokens}");
        let id = &[("path", "/p"), ("tenant", "t")];
        quotas.report("edge", &[(id, 1, 0)]);
        let Assigned::Tokens(tokens) = quotas.wait_for(id, is_tokens) else { unreachable!() };
        assert!(tokens <= 600, "{tokens}");
    });
}

#[test]
fn what_nothing_limits_is_allowed_and_what_nothing_admits_denied() {
    each(|setup| {
        let server = setup.start();
        let mut quotas = Quotas::open(&server);
        quotas.report("edge", &[]);
        for (key, expected) in [
            ("free", Assigned::Allow),
            ("unknown", Assigned::Allow),
            ("shadow", Assigned::Allow),
            ("none", Assigned::Deny),
        ] {
            quotas.wait_for(&[(key, "x")], |assigned| assigned == expected);
        }
        let mut elsewhere = Quotas::open(&server);
        elsewhere.report("no such domain", &[(ANN, 1, 0)]);
        elsewhere.wait_for(ANN, |assigned| assigned == Assigned::Allow);
    });
}

#[test]
fn a_report_of_any_number_harms_nobody() {
    const MOST: u64 = u64::MAX;
    each(|setup| {
        let admin = free_port();
        let server = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start();
        let (mut quotas, mut elsewhere) = (Quotas::open(&server), Quotas::open(&server));
        for (allowed, denied) in [(MOST, 0), (0, MOST), (MOST, MOST), (1, 1)] {
            for bucket in [ANN, &[("shadow", "x")], &[("free", "x")], &[("unknown", "x")]] {
                quotas.report("edge", &[(bucket, allowed, denied)]);
            }
            elsewhere.report("no such domain", &[(ANN, allowed, denied)]);
            // Rates are those of the last seconds.
            elsewhere.read_for(Duration::from_millis(100));
            quotas.read_for(Duration::from_millis(1100));
        }
        for path in ["/api/v1/status", "/api/v1/rules", "/api/v1/top", "/api/v1/refusals"] {
            let answer = http::get(admin, path);
            assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
        }
        drop((quotas, elsewhere));
        let log = server.final_log();
        assert!(!log.contains("panic"), "{log}");
    });
}

#[test]
fn a_stream_has_one_domain() {
    each(|setup| {
        let server = setup.start();
        for (reports, words) in [
            (vec![("", ANN)], "no domain"),
            (vec![("edge", ANN), ("other", ANN)], "one domain for each stream"),
        ] {
            let mut quotas = Quotas::open(&server);
            for (domain, bucket) in reports {
                quotas.report(domain, &[(bucket, 1, 0)]);
            }
            let failure = quotas.failure();
            assert_eq!(failure.code(), Code::InvalidArgument);
            assert!(failure.message().contains(words), "{failure}");
        }
        let mut quotas = Quotas::open(&server);
        quotas.report(&"x".repeat(1025), &[]);
        assert!(quotas.failure().message().contains("1024"));
        let mut quotas = Quotas::open(&server);
        for domain in ["edge", "", "edge"] {
            quotas.report(domain, &[(ANN, 1, 0)]);
        }
        quotas.wait_for(ANN, is_tokens);
    });
}

#[test]
fn without_rules_a_stream_fails_as_a_request_does() {
    let server = Setup::new().rules("edge.yaml", "domain: edge\ndescriptors: [{value: no key}]\n").start();
    let mut quotas = Quotas::open(&server);
    quotas.report("edge", &[(ANN, 1, 0)]);
    assert_eq!(quotas.failure().message(), "no rate limit configuration loaded");
}

#[test]
fn a_bucket_that_is_out_of_bounds_is_refused_and_the_stream_goes_on() {
    each(|setup| {
        let server = setup.env("MAX_ENTRIES_PER_DESCRIPTOR", "3").start();
        let mut quotas = Quotas::open(&server);
        let long = "x".repeat(1025);
        let names: Vec<String> = (0..4).map(|number| number.to_string()).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "")).collect();
        quotas.report("edge", &[(&[], 1, 0), (&many, 1, 0), (&[("user", &long)], 1, 0)]);
        quotas.report("edge", &[(&[(&long, "")], 1, 0), (&[("user", "\u{fffd}")], 1, 0), (ANN, 1, 0)]);
        quotas.wait_for(ANN, is_tokens);
        let reasons = ["empty_id", "too_many_entries", "id_too_large", "invalid_text"];
        assert_eq!(reasons.map(|reason| refused(&server, reason)), [1, 1, 2, 1]);
        assert_eq!(quotas.assigned.len(), 1, "{:?}", quotas.assigned);
    });
}

#[test]
fn buckets_are_bounded_for_each_stream_and_in_all() {
    each(|setup| {
        let server = setup.env("QUOTA_MAX_BUCKETS_PER_STREAM", "3").env("QUOTA_MAX_BUCKETS", "5").start();
        let names: Vec<String> = (0..10).map(|number| format!("user {number}")).collect();
        let usages = names.iter().map(|name| usage(&[("user", name)], 1, 0)).collect::<Vec<_>>();
        let report = RateLimitQuotaUsageReports { domain: "edge".to_owned(), bucket_quota_usages: usages };
        let mut streams: Vec<_> = (0..2).map(|_| Quotas::open(&server)).collect();
        for quotas in &mut streams {
            quotas.send(report.clone());
            quotas.wait_for(&[("user", "user 0")], is_tokens);
            quotas.read_for(Duration::from_millis(500));
        }
        assert_eq!(streams.iter().map(|quotas| quotas.assigned.len()).collect::<Vec<_>>(), [3, 2]);
        assert_eq!([refused(&server, "max_buckets_per_stream"), refused(&server, "max_buckets")], [7, 8]);
        assert_eq!(server.count("tollgate_quota_streams_open"), 2);
        drop(streams);
        eventually("the streams are closed", || {
            let open = server.count("tollgate_quota_streams_open");
            holds(open == 0, || format!("{open} streams"))
        });
    });
}

#[test]
fn thousands_of_new_buckets_in_small_frames_are_no_flood() {
    let server = setup().env("QUOTA_MAX_BUCKETS_PER_STREAM", "10000").start();
    let mut quotas = Quotas::open(&server);
    let names: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    for name in &names {
        quotas.report("edge", &[(&[("user", name)], 1, 0)]);
    }
    quotas.wait_for(&[("user", "4999")], is_tokens);
    assert_eq!(server.count("tollgate_quota_buckets"), 5_000);
}

#[test]
fn a_report_larger_than_every_window_is_taken_as_it_arrives() {
    let server = setup().env("QUOTA_MAX_BUCKETS_PER_STREAM", "10000").start();
    let before = server.process.resident_kib();
    let names: Vec<String> = (0..9000).map(|number| format!("{number:0100}")).collect();
    let usages = names.iter().map(|name| usage(&[("user", name)], 1, 0)).collect();
    let mut quotas = Quotas::open(&server);
    quotas.send(RateLimitQuotaUsageReports { domain: "edge".to_owned(), bucket_quota_usages: usages });
    eventually("all buckets are assigned", || {
        quotas.read_for(Duration::from_millis(100));
        holds(quotas.assigned.len() == 9000, || format!("{} buckets", quotas.assigned.len()))
    });
    assert_eq!(server.count("tollgate_quota_buckets"), 9000);
    let grown = server.process.resident_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn an_envoy_that_reads_late_gets_the_last_action_of_each_bucket() {
    let server = setup().env("QUOTA_MAX_BUCKETS_PER_STREAM", "10000").start();
    let before = server.process.resident_kib();
    let names: Vec<String> = (0..3000).map(|number| format!("{number:0100}")).collect();
    let usages = names.iter().map(|name| usage(&[("user", name)], 200, 0)).collect::<Vec<_>>();
    let report = RateLimitQuotaUsageReports { domain: "edge".to_owned(), bucket_quota_usages: usages };
    let mut quotas = Quotas::open(&server);
    for _ in 0..10 {
        quotas.send(report.clone());
        quotas.send_for(Duration::from_millis(300));
    }
    server.write("edge.yaml", &RULES.replace("requests_per_unit: 1000}", "requests_per_unit: 0}"));
    eventually("all buckets are denied", || {
        quotas.read_for(Duration::from_millis(100));
        let denied = quotas.assigned.values().filter(|assigned| **assigned == Assigned::Deny).count();
        holds(denied == 3000, || format!("{denied} of {} buckets", quotas.assigned.len()))
    });
    let grown = server.process.resident_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB");
}

#[test]
fn a_report_may_come_in_any_pieces() {
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    let report = |name: &str| RateLimitQuotaUsageReports {
        domain: "edge".to_owned(),
        bucket_quota_usages: vec![usage(&[("user", name)], 1, 0), usage(&[("free", name)], 1, 0)],
    };
    let two = [framed(&report("ann")), framed(&report("bob"))].concat();
    for (number, size) in (1..40).step_by(6).enumerate() {
        let stream = u32::try_from(number).unwrap() * 2 + 1;
        client.call(stream, PATH);
        two.chunks(size).for_each(|piece| client.send(DATA, 0, stream, piece));
        client.send(DATA, END_STREAM, stream, &[]);
        let end = client.end_of(stream);
        assert!(end.ends_with("grpc-status\u{1}0"), "{end}");
        assert_eq!(server.count("tollgate_quota_reports_total"), 2 * (number + 1));
    }
}

#[test]
fn invalid_streams_end_with_an_error() {
    let server = setup().env("GRPC_RECEIVE_TIMEOUT", "500ms").env("GRPC_MAX_REQUEST_BYTES", "100000").start();
    let mut client = Connection::open(server.ports.grpc);
    let domain = &[0, 0, 0, 0, 6, 10, 4, b'e', b'd', b'g', b'e'][..];
    let huge = [&[0, 0, 1, 0x11, 0x70, 18, 0xec, 0xa2, 4], &vec![0; 60_000][..]].concat();
    let cases: [(&[u8], u8, Code, &str); 9] = [
        (&[1, 0, 0, 0, 0], 0, Code::Unimplemented, "compressed"),
        (&[0, 0, 1, 0x86, 0xa1], 0, Code::ResourceExhausted, "maximum is 100000"),
        (&[0, 0, 0, 0, 1, 0xff], 0, Code::Internal, "RateLimitQuotaUsageReports"),
        (&[0, 0, 0, 0, 0], 0, Code::InvalidArgument, "no domain"),
        (&[0, 0, 0, 0, 2, 10, 1], 0, Code::Internal, "exceeds its message"),
        (&[0, 0, 0, 0, 2, 10], END_STREAM, Code::Internal, "ended before"),
        (&[0, 0], END_STREAM, Code::Internal, "ended before"),
        (&[0, 0, 0, 0, 9, 10, 1], 0, Code::DeadlineExceeded, "GRPC_RECEIVE_TIMEOUT"),
        (&huge, 0, Code::ResourceExhausted, "60000 bytes"),
    ];
    for (number, (bytes, flags, code, words)) in cases.into_iter().enumerate() {
        for prefix in [&[][..], domain] {
            let is_later = !prefix.is_empty();
            let stream = u32::try_from(number).unwrap() * 4 + 1 + 2 * u32::from(is_later);
            if is_later && words == "no domain" {
                continue;
            }
            client.call(stream, PATH);
            client.data(stream, prefix);
            client.data(stream, bytes);
            if flags != 0 {
                client.send(DATA, flags, stream, &[]);
            }
            let end = client.end_of(stream);
            let status =
                format!("grpc-status{}{}", char::from(if code as i32 > 9 { 2 } else { 1 }), code as i32);
            assert!(end.contains(&status) && end.contains(words), "{words}: {end}");
        }
    }
    assert!(server.ask(request("edge", &[ANN])).is_ok());
}

#[test]
fn unknown_fields_and_odd_times_are_ignored() {
    each(|setup| {
        let server = setup.start();
        let mut quotas = Quotas::open(&server);
        for (seconds, nanos) in [(0, 0), (-5, 0), (i64::MAX, -1), (5, 1)] {
            let mut usage = usage(ANN, 1, 0);
            usage.time_elapsed = Some(prost_types::Duration { seconds, nanos });
            let usages = vec![usage];
            quotas
                .send(RateLimitQuotaUsageReports { domain: "edge".to_owned(), bucket_quota_usages: usages });
        }
        quotas.wait_for(ANN, is_tokens);
        let reported = server.count("tollgate_quota_reported_hits_total{outcome=\"allowed\"}");
        assert_eq!(reported, 4);
    });
    // Fields 15, of each wire type, in the report, the usage, the id and the entry of its map.
    let unknown: &[u8] = &[0x78, 1, 0x7a, 1, 0, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0x7d, 0, 0, 0, 0];
    let nested =
        |number: u8, inner: &[u8]| [&[number << 3 | 2, u8::try_from(inner.len()).unwrap()], inner].concat();
    let entry = nested(1, &[unknown, &nested(1, b"user"), &nested(2, b"ann")].concat());
    let usage = [unknown, &nested(1, &[unknown, &entry].concat()), &[0x18, 3]].concat();
    let report = [unknown, &nested(1, b"edge"), unknown, &nested(2, &usage), unknown].concat();
    let decoded = RateLimitQuotaUsageReports::decode(&*report).unwrap();
    assert_eq!(decoded.bucket_quota_usages[0].num_requests_allowed, 3);
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    client.call(1, PATH);
    client.send(DATA, END_STREAM, 1, &framed(&decoded));
    client.call(3, PATH);
    let length = u32::try_from(report.len()).unwrap().to_be_bytes();
    client.send(DATA, END_STREAM, 3, &[&[0], &length[..], &report].concat());
    assert!(client.end_of(3).ends_with("grpc-status\u{1}0"));
    assert_eq!(server.count("tollgate_quota_reported_hits_total{outcome=\"allowed\"}"), 6);
}

#[test]
fn a_stream_ends_when_the_service_does_and_when_its_envoy_does() {
    each(|setup| {
        let mut server = setup.start();
        let mut done = Quotas::open(&server);
        done.report("edge", &[(ANN, 1, 0)]);
        done.wait_for(ANN, is_tokens);
        done.end();
        while let Some(_response) = done.next().expect("the stream ends without an error") {}
        let mut quotas = Quotas::open(&server);
        quotas.report("edge", &[(ANN, 1, 0)]);
        quotas.wait_for(ANN, is_tokens);
        server.process.signal("TERM");
        assert_eq!(quotas.failure().code(), Code::Unavailable);
        // Their connections are closed by their clients, which do not run by themselves.
        drop((done, quotas));
        assert!(server.process.wait(Duration::from_secs(20)).is_some_and(|status| status.success()));
    });
}

/// Envoy opens its next stream when it reports next, five seconds after its last report.
#[test]
fn a_stream_goes_on_until_just_before_the_next_report_while_its_connection_closes() {
    let aged = setup().env("GRPC_MAX_CONNECTION_AGE", "1s");
    for (setup, is_stopped) in [(setup(), true), (aged, false)] {
        let server = setup.start();
        let mut quotas = Quotas::open(&server);
        quotas.report("edge", &[(ANN, 1, 0)]);
        quotas.wait_for(ANN, is_tokens);
        if is_stopped {
            server.process.signal("TERM");
        }
        let before = Instant::now();
        // Its reports are still answered.
        quotas.report("edge", &[(ANN, 1, 0), (&[("free", "x")], 1, 0)]);
        quotas.wait_for(&[("free", "x")], |assigned| assigned == Assigned::Allow);
        let after = Instant::now();
        assert_eq!(quotas.failure().code(), Code::Unavailable);
        assert!(before.elapsed() > Duration::from_millis(4700), "it ended after {:?}", before.elapsed());
        assert!(after.elapsed() < Duration::from_secs(7), "it ended after {:?}", after.elapsed());
    }
}

#[test]
fn a_connection_has_a_few_streams() {
    let server = setup().start();
    let mut client = Connection::open(server.ports.grpc);
    for number in 0..16 {
        client.call(2 * number + 1, PATH);
    }
    client.call(33, PATH);
    let end = client.end_of(33);
    assert!(end.contains("too many streaming calls"), "{end}");
}
