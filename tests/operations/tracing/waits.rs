//! Spans of requests that wait for counters, fail without them, or are cancelled.

use http::HeaderMap;

use super::{ask, setup};
use support::{
    client::request,
    fake::Fake,
    grpc_tls::alone,
    ports::free_port,
    raw::{RawClient, framed},
    receiver::{AttributeValue, Receiver, Span},
    redis::Redis,
};

#[test]
fn waiting_for_counters_has_its_own_span() {
    let redis = Redis::single();
    let receiver = Receiver::start(false, None);
    let url = format!("127.0.0.1:{}", redis.port);
    let server = setup("http", receiver.port).redis(&vec![("REDIS_URL", url)]).start_healthy();
    ask(&server, &request("d", &[&[("user", "ann")], &[("path", "/a/b")]]), &[]);
    let spans = receiver.wait_for(2);
    let (part, whole) = (&spans[0], &spans[1]);
    assert_eq!((&*part.name, part.kind, part.flags), ("wait for counters", 1, 0x101));
    assert_eq!((&part.trace, &part.parent), (&whole.trace, &whole.id));
    assert!(whole.begun <= part.begun && part.begun <= part.ended && part.ended <= whole.ended, "{spans:?}");
    assert_eq!((part.attribute("tollgate.checks"), &part.status), (2.into(), &None));
}

#[test]
fn spans_have_the_policy_that_decided_without_counters() {
    let receiver = Receiver::start(false, None);
    let ask_without_counters = |policy: &str| {
        let mut server = setup("http", receiver.port)
            .env("BACKEND_TYPE", "redis")
            .env("REDIS_URL", &format!("127.0.0.1:{}", free_port()))
            .env("STORE_FAILURE_POLICY", policy)
            .start();
        ask(&server, &request("d", &[&[("user", "ann")]]), &[]);
        assert!(server.process.stop().success());
    };
    ask_without_counters("allow");
    let by_policy = |spans: Vec<Span>| {
        spans.into_iter().find(|span| span.attribute("tollgate.store_failure.policy") == "allow".into())
    };
    let span = by_policy(receiver.spans()).expect("the span of the call has the policy");
    assert!(matches!(span.attribute("tollgate.store_failure.reason"), AttributeValue::Text(_)), "{span:?}");
    assert_eq!((span.attribute("tollgate.code"), span.status), ("OK".into(), None));

    let before = receiver.spans().len();
    ask_without_counters("error");
    let spans = receiver.spans();
    assert!(
        spans.len() > before
            && spans[before..].iter().all(|span| span.status.as_ref().is_some_and(|status| status.code == 2))
    );
}

#[test]
fn spans_of_cancelled_calls_have_an_error() {
    let silent = Fake::answering(|words, _| {
        // A probe increments by `x`.
        let counts = words[0].starts_with("INCR") && words[2] != "x" || words[0].starts_with("EXPIRE");
        if counts { String::new() } else { "+PONG\r\n".to_owned() }
    });
    let receiver = Receiver::start(false, None);
    let env = vec![("REDIS_URL", silent.address())];
    let server = setup("http", receiver.port).redis(&env).env("REDIS_TIMEOUT", "60s").start_healthy();
    alone(async {
        let mut client = RawClient::connect(server.ports.grpc).await.unwrap();
        let question = framed(&request("d", &[&[("user", "ann")]]));
        let headers = HeaderMap::new();
        let asking = client.exchange(question, &headers);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(300), asking).await.is_err());
        drop(client);
    });
    let span = receiver.wait_for(1)[0].clone();
    assert!(span.status.is_some_and(|status| status.code == 2 && status.message.contains("cancelled")));
    assert!(span.ended - span.begun > 200_000_000, "the span has the duration of the wait");
}
