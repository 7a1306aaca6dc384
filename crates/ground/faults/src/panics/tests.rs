//! Panics stop at their boundary and restart work.

use std::{
    future::{pending, poll_fn},
    task::Waker,
};

use super::*;

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_stopped_panic_restores_the_outer_boundary() {
    let outer = catch(Boundary::Statsd, || {
        let inner = catch(Boundary::HttpRequest, || -> u8 {
            assert_eq!(WITHIN.get(), Boundary::HttpRequest);
            panic!("on purpose")
        });
        (inner, WITHIN.get())
    });
    assert_eq!(outer, Ok((Err(Panicked), Boundary::Statsd)));
    assert_eq!(WITHIN.get(), Boundary::Other);
}

#[test]
fn every_poll_of_a_future_is_within_its_boundary() {
    let within = poll_fn(|_| Poll::Ready(WITHIN.get()));
    assert_eq!(poll_once(caught(Boundary::XdsClient, within)), Poll::Ready(Ok(Boundary::XdsClient)));
    let panics = caught(Boundary::XdsClient, async { panic!("on purpose") });
    assert_eq!(poll_once(panics), Poll::<Result<(), _>>::Ready(Err(Panicked)));
    assert!(poll_once(caught(Boundary::XdsClient, pending::<()>())).is_pending());
    assert_eq!(WITHIN.get(), Boundary::Other);
}

#[test]
fn boundaries_have_distinct_names() {
    for (at, boundary) in Boundary::ALL.iter().enumerate() {
        assert_eq!(*boundary as usize, at);
        assert!(Boundary::ALL[..at].iter().all(|other| other.name() != boundary.name()));
    }
}
