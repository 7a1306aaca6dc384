//! Counts the messages of a response before decoding it: a message of two bytes becomes a struct of hundreds,
//! and 8 MB of empty descriptors took 2.2 GB.
//!
//! It counts the messages that the compiler keeps: resources, descriptors, limits, replaced names and values of
//! metadata. The codec in `stream` rejects a response with too many of them, and `delta` a resource that does not
//! fit beside the known ones.

use prost_types::Any;

use crate::protobuf::{Fields, Malformed};

/// Messages that may still be counted.
struct Room(usize);

/// Why counting ended early.
enum Stop {
    Malformed(Malformed),
    Full,
}

impl From<Malformed> for Stop {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// How the protocol variants wrap a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrapping {
    /// `resources` are `google.protobuf.Any`.
    Plain,
    /// They are `Resource`, which has one, and `removed_resources` are names.
    Named,
}

/// Whether a response has at most `max` messages.
///
/// # Errors
/// When it is not a message. Counting of a malformed resource ends where it is malformed; decoding it reports the
/// error, and costs no more than what was counted.
pub(super) fn fits(response: &[u8], wrapping: Wrapping, max: usize) -> Result<bool, Malformed> {
    match Room(max).take_response(response, wrapping) {
        Ok(()) => Ok(true),
        Err(Stop::Full) => Ok(false),
        Err(Stop::Malformed(malformed)) => Err(malformed),
    }
}

/// How many messages a resource has, itself included; none when there are more than `max`.
pub(super) fn weight(resource: &Any, max: usize) -> Option<usize> {
    let mut room = Room(max);
    match room.take(1).and_then(|()| room.take_config(&resource.value)) {
        Err(Stop::Full) => None,
        Ok(()) | Err(Stop::Malformed(_)) => Some(max.saturating_sub(room.0)),
    }
}

impl Room {
    fn take(&mut self, messages: usize) -> Result<(), Stop> {
        self.0 = self.0.checked_sub(messages).ok_or(Stop::Full)?;
        Ok(())
    }

    fn take_response(&mut self, response: &[u8], wrapping: Wrapping) -> Result<(), Stop> {
        let mut fields = Fields::new(response);
        while let Some(key) = fields.next()? {
            match (key.number, wrapping) {
                (2, Wrapping::Plain) => self.take_resource(fields.message(key)?)?,
                (2, Wrapping::Named) => {
                    self.take(1)?;
                    let mut resource = fields.message(key)?;
                    while let Some(key) = resource.next()? {
                        match key.number {
                            2 => self.take_resource(resource.message(key)?)?,
                            _ => resource.skip(key)?,
                        }
                    }
                }
                (6, Wrapping::Named) => {
                    self.take(1)?;
                    fields.skip(key)?;
                }
                _ => fields.skip(key)?,
            }
        }
        Ok(())
    }

    /// A `google.protobuf.Any`.
    fn take_resource(&mut self, mut resource: Fields<'_>) -> Result<(), Stop> {
        self.take(1)?;
        while let Some(key) = resource.next()? {
            if key.number != 2 {
                resource.skip(key)?;
            } else if let Err(Stop::Full) = self.take_config(resource.bytes(key)?) {
                return Err(Stop::Full);
            }
        }
        Ok(())
    }

    /// A `RateLimitConfig`.
    fn take_config(&mut self, config: &[u8]) -> Result<(), Stop> {
        let mut config = Fields::new(config);
        while let Some(key) = config.next()? {
            match key.number {
                3 => self.take_descriptor(config.message(key)?)?,
                _ => config.skip(key)?,
            }
        }
        Ok(())
    }

    fn take_descriptor(&mut self, mut descriptor: Fields<'_>) -> Result<(), Stop> {
        self.take(1)?;
        while let Some(key) = descriptor.next()? {
            match key.number {
                3 => self.take_policy(descriptor.message(key)?)?,
                4 => self.take_descriptor(descriptor.message(key)?)?,
                8 => self.take_struct(descriptor.message(key)?)?,
                _ => descriptor.skip(key)?,
            }
        }
        Ok(())
    }

    fn take_policy(&mut self, mut policy: Fields<'_>) -> Result<(), Stop> {
        self.take(1)?;
        while let Some(key) = policy.next()? {
            if key.number == 5 {
                self.take(1)?;
            }
            policy.skip(key)?;
        }
        Ok(())
    }

    /// A `google.protobuf.Struct`: a map from names to values.
    fn take_struct(&mut self, mut map: Fields<'_>) -> Result<(), Stop> {
        while let Some(key) = map.next()? {
            if key.number != 1 {
                map.skip(key)?;
                continue;
            }
            self.take(1)?;
            let mut pair = map.message(key)?;
            while let Some(key) = pair.next()? {
                match key.number {
                    2 => self.take_value(pair.message(key)?)?,
                    _ => pair.skip(key)?,
                }
            }
        }
        Ok(())
    }

    /// A `google.protobuf.Value`: it may hold a map or a list.
    fn take_value(&mut self, mut value: Fields<'_>) -> Result<(), Stop> {
        while let Some(key) = value.next()? {
            match key.number {
                5 => self.take_struct(value.message(key)?)?,
                6 => {
                    let mut list = value.message(key)?;
                    while let Some(key) = list.next()? {
                        match key.number {
                            1 => {
                                self.take(1)?;
                                self.take_value(list.message(key)?)?;
                            }
                            _ => list.skip(key)?,
                        }
                    }
                }
                _ => value.skip(key)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::{ListValue, Struct, Value, value::Kind};

    use super::*;
    use crate::proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse, Resource},
        ratelimit::config::ratelimit::v3::{
            RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
        },
    };

    fn text() -> Value {
        Value { kind: Some(Kind::StringValue("x".to_owned())) }
    }

    /// A resource of 2 descriptors, 1 limit that replaces 2, and 5 values of metadata: 11 messages.
    fn config() -> RateLimitConfig {
        let replaces = ["a", "b"].map(|name| RateLimitReplace { name: name.to_owned() }).to_vec();
        let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![text(), text()] })) };
        let inner = Struct { fields: [("l".to_owned(), list)].into() };
        let map = Value { kind: Some(Kind::StructValue(inner)) };
        let below = RateLimitDescriptor { key: "b".to_owned(), ..RateLimitDescriptor::default() };
        let above = RateLimitDescriptor {
            key: "a".to_owned(),
            rate_limit: Some(RateLimitPolicy { replaces, ..RateLimitPolicy::default() }),
            metadata: Some(Struct { fields: [("m".to_owned(), map), ("t".to_owned(), text())].into() }),
            descriptors: vec![below],
            ..RateLimitDescriptor::default()
        };
        RateLimitConfig { domain: "d".to_owned(), descriptors: vec![above], ..RateLimitConfig::default() }
    }

    fn wrapped(value: Vec<u8>) -> Any {
        Any { type_url: "t".to_owned(), value }
    }

    #[test]
    fn everything_that_becomes_a_struct_is_counted_once() {
        let resource = wrapped(config().encode_to_vec());
        assert_eq!(weight(&resource, usize::MAX), Some(11));
        assert_eq!((weight(&resource, 11), weight(&resource, 10)), (Some(11), None));
        let plain =
            DiscoveryResponse { resources: vec![resource.clone(); 3], ..DiscoveryResponse::default() };
        for (most, expected) in [(32, false), (33, true), (34, true)] {
            assert_eq!(fits(&plain.encode_to_vec(), Wrapping::Plain, most), Ok(expected), "{most}");
        }
        let named = Resource { name: "n".to_owned(), resource: Some(resource), ..Resource::default() };
        let delta = DeltaDiscoveryResponse {
            resources: vec![named; 3],
            removed_resources: vec!["x".to_owned(); 4],
            ..DeltaDiscoveryResponse::default()
        };
        for (most, expected) in [(39, false), (40, true), (41, true)] {
            assert_eq!(fits(&delta.encode_to_vec(), Wrapping::Named, most), Ok(expected), "{most}");
        }
    }

    #[test]
    fn a_response_of_nothing_but_empty_messages_is_too_much() {
        // Resources, and descriptors within one.
        let resources = [0x12, 0].repeat(4_000_000);
        for wrapping in [Wrapping::Plain, Wrapping::Named] {
            assert_eq!(fits(&resources, wrapping, 3_999_999), Ok(false));
        }
        assert_eq!(fits(&resources, Wrapping::Plain, 4_000_000), Ok(true));
        assert_eq!(weight(&wrapped([0x1a, 0].repeat(4_000_000)), 1_000_000), None);
    }

    #[test]
    fn what_is_nested_without_end_is_left() {
        // Every descriptor holds the next one; prost refuses this too.
        let mut nested = Vec::new();
        for _ in 0..2_000 {
            let mut outer = vec![0x22];
            prost::encoding::encode_varint(nested.len() as u64, &mut outer);
            outer.append(&mut nested);
            nested = outer;
        }
        nested[0] = 0x1a;
        assert!(RateLimitConfig::decode(&*nested).is_err());
        assert!(weight(&wrapped(nested), usize::MAX).is_some_and(|weight| weight <= 101));
    }

    proptest! {
        #[test]
        fn any_bytes_are_counted_or_malformed(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        ) {
            for wrapping in [Wrapping::Plain, Wrapping::Named] {
                let _ = fits(&bytes, wrapping, 100);
            }
            let mut resource = config().encode_to_vec();
            for (at, byte) in changes {
                let at = at.index(resource.len());
                resource[at] = byte;
            }
            // A resource can be read only if it was counted to its end, and then to at most one a byte.
            let length = resource.len();
            prop_assert!(weight(&wrapped(resource), usize::MAX).is_some_and(|weight| weight <= length));
        }
    }
}
