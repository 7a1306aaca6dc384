//! Compares the parser with the model: both accept and reject the same bytes, with the same content.

use proptest::{collection::vec, prelude::*, sample::select};
use prost::Message;

use super::*;
use limiter::Ask;
use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{self, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};
use proto::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};

const NONE: Bounds = Bounds { descriptors: usize::MAX, entries: usize::MAX };

/// The request that prost decodes, cut to the bounds.
fn expected(message: &RateLimitRequest, bounds: Bounds) -> Request<'_> {
    let mut request = crate::wire::request(message);
    request.excess_descriptors = request.descriptors.len().saturating_sub(bounds.descriptors);
    request.descriptors.truncate(bounds.descriptors);
    for descriptor in &mut request.descriptors {
        descriptor.excess_entries = descriptor.entries.len().saturating_sub(bounds.entries);
        descriptor.entries.truncate(bounds.entries);
    }
    request
}

fn read<'m>(message: &'m [u8], bounds: Bounds, escaped: &'m mut Vec<u8>) -> Result<Request<'m>, Malformed> {
    let mut request = Request::default();
    super::read(DecisionRpc::ShouldRateLimit, message, bounds, escaped, &mut request).map(|()| request)
}

fn check(bytes: &[u8], bounds: Bounds) -> Result<bool, TestCaseError> {
    let (prosts, mut escaped) = (fuzz::decode(bytes), Vec::new());
    let is_read = {
        let ours = read(bytes, bounds, &mut escaped);
        match (&ours, &prosts) {
            (Ok(ours), Ok(prosts)) => prop_assert_eq!(ours, &expected(prosts, bounds)),
            (Err(_), Err(_)) => {}
            _ => prop_assert!(false, "{ours:?} but {prosts:?} for {bytes:02x?}"),
        }
        ours.is_ok()
    };
    prop_assert!(escaped.len() <= 5 * bytes.len());
    Ok(is_read)
}

/// A valid or invalid field: every number around those in use, every wire type, and values
/// of every kind.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let leaf = (0_u64..6, 0_u64..8, value()).prop_map(|(number, wire_type, value)| {
        let mut field = varint(number << 3 | wire_type);
        field.extend(value);
        field
    });
    let leaf = prop_oneof![8 => leaf, 4 => text_field(), 1 => vec(any::<u8>(), 0..4)];
    leaf.prop_recursive(6, 60, 5, |field| {
        let message = (1_u64..5, vec(field.clone(), 0..5)).prop_map(|(number, fields)| {
            let fields = fields.concat();
            [varint(number << 3 | 2), varint(fields.len() as u64), fields].concat()
        });
        let group = (1_u64..5, 1_u64..5, vec(field, 0..4)).prop_map(|(start, end, fields)| {
            // Mostly the end matches the start.
            let end = if end == 1 { end } else { start };
            [varint(start << 3 | 3), fields.concat(), varint(end << 3 | 4)].concat()
        });
        prop_oneof![6 => message, 1 => group]
    })
}

fn text_field() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        4 => "[\\PC\u{fffd}]{0,8}".prop_map(String::into_bytes),
        2 => vec(any::<u8>(), 0..5),
    ];
    (1_u64..3, text)
        .prop_map(|(number, text)| [varint(number << 3 | 2), varint(text.len() as u64), text].concat())
}

/// The bytes of a value, which may not fit the wire type.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0_u64..8).prop_map(varint),
        4 => any::<u64>().prop_map(varint),
        // Longer than necessary, up to one byte too long.
        2 => (any::<u64>(), 0_usize..11).prop_map(|(number, length)| {
            let mut bytes = varint(number);
            while bytes.len() < length {
                if let Some(last) = bytes.last_mut() {
                    *last |= 0x80;
                }
                bytes.push(0);
            }
            bytes
        }),
        1 => Just(vec![0xff; 10]),
        1 => Just([vec![0xff; 9], vec![2]].concat()),
        1 => vec(any::<u8>(), 4..=4),
        1 => vec(any::<u8>(), 8..=8),
    ]
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let some = |number: usize| if number == 4 { usize::MAX } else { number };
    (0_usize..5, 0_usize..5).prop_map(move |(descriptors, entries)| Bounds {
        descriptors: some(descriptors),
        entries: some(entries),
    })
}

prop_compose! {
    fn message()(
        domain in "[\\PC\u{fffd}]{0,9}",
        hits_addend in any::<u32>(),
        descriptors in vec((
            vec(("\\PC{0,5}", "\\PC{0,5}"), 0..7),
            prop::option::of((any::<u32>(), any::<i32>())),
            prop::option::of(any::<u64>()),
            any::<bool>(),
        ), 0..5),
    ) -> RateLimitRequest {
        let descriptors = descriptors.into_iter().map(|(entries, limit, hits_addend, is_negative_hits)| {
            let entry = |(key, value)| rate_limit_descriptor::Entry { key, value };
            let limit = limit.map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit, unit_multiplier: None });
            let entries = entries.into_iter().map(entry).collect();
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        });
        RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_message_parses_as_in_prost(message in message(), bounds in bounds()) {
        prop_assert!(check(&message.encode_to_vec(), bounds)?);
    }

    #[test]
    fn hostile_fields_parse_as_in_prost(fields in vec(field(), 0..8), bounds in bounds()) {
        check(&fields.concat(), bounds)?;
    }

    #[test]
    fn damaged_messages_parse_as_in_prost(
        first in message(),
        second in message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4), 0..4),
        bounds in bounds(),
    ) {
        // Two concatenated messages are one message: repeated fields are merged.
        let mut bytes = [first.encode_to_vec(), second.encode_to_vec()].concat();
        for (at, byte, kind) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => bytes.truncate(at),
            }
        }
        check(&bytes, bounds)?;
    }

    #[test]
    fn random_bytes_parse_as_in_prost(
        bytes in vec(prop_oneof![any::<u8>(), select(&[8_u8, 10, 18, 24, 26, 32, 11, 12, 0x80, 1, 2][..])], 0..40),
    ) {
        check(&bytes, NONE)?;
    }
}

/// Nested groups at the top, in a descriptor and in an entry, at the accepted depth and one
/// above it.
#[test]
fn groups_nest_exactly_as_deep_as_in_prost() {
    let groups = |depth: usize| [vec![0x2b; depth], vec![0x2c; depth]].concat();
    let within = |inner: Vec<u8>, field: u8| [vec![field], varint(inner.len() as u64), inner].concat();
    let deepest = |wrap: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let accepted = |depth: &usize| check(&wrap(groups(*depth)), NONE).unwrap();
        (0..200).rev().find(accepted).unwrap()
    };
    assert_eq!(deepest(&|groups| groups), 100);
    assert_eq!(deepest(&|groups| within(groups, 0x12)), 99);
    assert_eq!(deepest(&|groups| within(within(groups, 0x0a), 0x12)), 98);
    assert!(!check(&[0x2b].repeat(4_000_000), NONE).unwrap());
}

#[test]
fn a_repeated_limit_is_merged() {
    let limit = |fields: &[u8]| {
        [&[0x12, 2 + u8::try_from(fields.len()).unwrap()][..], &[0x12], &varint(fields.len() as u64), fields]
            .concat()
    };
    let descriptor = [&[0x12, 8][..], &limit(&[8, 7])[2..], &limit(&[16, 3])[2..]].concat();
    assert!(check(&descriptor, NONE).unwrap());
    let mut escaped = Vec::new();
    let request = read(&descriptor, NONE, &mut escaped).unwrap();
    let merged = LimitOverride { requests_per_unit: 7, unit: 3, unit_multiplier: None };
    assert_eq!(request.descriptors[0].limit, Some(merged));
}

#[test]
fn items_beyond_a_bound_are_counted_but_not_kept() {
    for count in [0, 1, 2, 3, 4, 2_000_000] {
        let request = [0x12, 0].repeat(count);
        let mut escaped = Vec::new();
        let request = read(&request, Bounds { descriptors: 3, entries: 2 }, &mut escaped).unwrap();
        assert_eq!(request.descriptors.len(), count.min(3));
        assert_eq!(request.excess_descriptors, count.saturating_sub(3));
    }
    for count in [0, 1, 2, 3, 2_000_000] {
        let entries = [0x0a, 0].repeat(count);
        let request = [vec![0x12], varint(entries.len() as u64), entries].concat();
        let mut escaped = Vec::new();
        let request = read(&request, Bounds { descriptors: 3, entries: 2 }, &mut escaped).unwrap();
        assert_eq!(request.descriptors[0].entries.len(), count.min(2));
        assert_eq!(request.descriptors[0].excess_entries, count.saturating_sub(2));
    }
}

#[test]
fn a_usual_request_allocates_nothing() {
    let entry = |key: &str| rate_limit_descriptor::Entry { key: key.into(), value: "v".into() };
    let descriptor = || RateLimitDescriptor {
        entries: ["a", "b", "c", "d"].map(entry).to_vec(),
        ..RateLimitDescriptor::default()
    };
    let message = RateLimitRequest {
        domain: "d".into(),
        descriptors: vec![descriptor(), descriptor()],
        ..RateLimitRequest::default()
    };
    let bytes = message.encode_to_vec();
    let mut escaped = Vec::new();
    let request = read(&bytes, NONE, &mut escaped).unwrap();
    assert!(!request.descriptors.spilled());
    assert!(request.descriptors.iter().all(|descriptor| !descriptor.entries.spilled()));
    drop(request);
    assert_eq!(escaped.capacity(), 0);
}

#[test]
fn texts_that_are_not_utf8_are_escaped_wherever_they_are() {
    let field = |number: u8, content: &[u8]| {
        [&[number << 3 | 2][..], &varint(content.len() as u64), content].concat()
    };
    let long = "x".repeat(120);
    for value in [&b"caf\xe9"[..], b"caf\xef\xbf\xbdE9", &[long.as_bytes(), b"\xff"].concat()] {
        let entry = [field(1, b"k\xff"), field(2, value)].concat();
        let descriptor = field(1, &entry);
        let message = [field(1, b"d\x80"), field(2, &descriptor)].concat();
        assert!(check(&message, NONE).unwrap());
        let mut escaped = Vec::new();
        let request = read(&message, NONE, &mut escaped).unwrap();
        assert_eq!(request.domain, "d\u{fffd}80");
        assert_eq!(request.descriptors[0].entries[0].key, "k\u{fffd}FF");
    }
}

proptest! {
    #[test]
    fn kuadrants_messages_are_read_as_prost_reads_them(
        domain in "[a-zü€]{0,8}", values in vec("[a-zü€]{0,8}", 0..4), reservation in "[a-zü€]{0,8}", amount: u64,
        ttl in prop::option::of((any::<i64>(), any::<i32>())),
    ) {
        let entry = |value: &String| rate_limit_descriptor::Entry { key: "k".into(), value: value.clone() };
        let descriptors: Vec<_> = values.iter().map(|value| RateLimitDescriptor {
            entries: vec![entry(value)],
            // Not those of the call.
            hits_addend: Some(7),
            is_negative_hits: true,
            ..RateLimitDescriptor::default()
        }).collect();
        let duration = ttl.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
        let reserve = ReserveRequest { domain: domain.clone(), descriptors: descriptors.clone(), amount, ttl: duration };
        let commit = CommitRequest {
            domain: domain.clone(), descriptors: descriptors.clone(), reservation_id: reservation.clone(), actual_amount: amount,
        };
        let envoys = RateLimitRequest { domain: domain.clone(), descriptors, hits_addend: 3 };
        let valid = ttl.and_then(|(seconds, nanos)| {
            let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
            Some(std::time::Duration::new(u64::try_from(seconds).ok()?, nanos)).filter(|ttl| !ttl.is_zero())
        });
        for (rpc, message, ask, hits) in [
            (DecisionRpc::CheckRateLimit, envoys.encode_to_vec(), Ask::Look, Some(1)),
            (DecisionRpc::Report, envoys.encode_to_vec(), Ask::Report, Some(7)),
            (DecisionRpc::Reserve, reserve.encode_to_vec(), Ask::Reserve { ttl: valid }, Some(amount)),
            (DecisionRpc::Commit, commit.encode_to_vec(), Ask::Report, Some(amount)),
        ] {
            let mut escaped = Vec::new();
            let mut request = Request::default();
            super::read(rpc, &message, NONE, &mut escaped, &mut request).unwrap();
            prop_assert_eq!((request.domain, request.ask), (&*domain, ask), "{:?}", rpc);
            let read: Vec<_> = request.descriptors.iter().map(|descriptor| descriptor.entries[0].value).collect();
            prop_assert_eq!(&read, &values);
            for descriptor in &request.descriptors {
                prop_assert_eq!(descriptor.hits_addend, hits, "{:?}", rpc);
                prop_assert_eq!(descriptor.is_negative_hits, rpc == DecisionRpc::Report, "{:?}", rpc);
            }
            prop_assert_eq!(request.reservation, if rpc == DecisionRpc::Commit { &reservation } else { "" });
        }
    }

    #[test]
    fn any_bytes_are_read_or_rejected_as_messages_of_every_method(fields in vec(field(), 0..6)) {
        let bytes = fields.concat();
        let some = Bounds { descriptors: 2, entries: 2 };
        for rpc in [DecisionRpc::CheckRateLimit, DecisionRpc::Report, DecisionRpc::Reserve, DecisionRpc::Commit] {
            let mut escaped = Vec::new();
            let mut request = Request::default();
            let is_read = super::read(rpc, &bytes, some, &mut escaped, &mut request).is_ok();
            prop_assert!(!is_read || request.descriptors.len() <= 2);
            // Prost refuses texts that are not UTF-8, and this parser escapes them.
            let by_prost = match rpc {
                DecisionRpc::Reserve => ReserveRequest::decode(&*bytes).is_ok(),
                DecisionRpc::Commit => CommitRequest::decode(&*bytes).is_ok(),
                _ => RateLimitRequest::decode(&*bytes).is_ok(),
            };
            prop_assert!(is_read || !by_prost, "{:?} {:02x?}", rpc, bytes);
        }
    }
}
