//! Counts the messages of a response before it is decoded: a message of two bytes becomes a struct of hundreds, and 8 MB
//! of empty descriptors took 2.2 GB.
//!
//! The count covers the messages that the compiler keeps: resources, descriptors, limits, replaced names and values of
//! metadata. `stream` rejects a response with too many of them.

use self::Content::{Config, Message, Skipped};
use proto::protobuf::{Fields, Malformed};

/// A field that is counted, or that leads to counted ones. Fields without a `Field` are skipped.
struct Field {
    number: u32,
    is_counted: bool,
    content: Content,
}

enum Content {
    Skipped,
    Message(&'static [Field]),
    /// The bytes of a `RateLimitConfig`. Counting ends where they are malformed: decoding reports the error, and costs
    /// no more than the counted part.
    Config,
}

static RESPONSE: [Field; 1] = [counted(2, Message(&ANY))];
static ANY: [Field; 1] = [uncounted(2, Config)];
static CONFIG: [Field; 1] = [counted(3, Message(&DESCRIPTOR))];
static DESCRIPTOR: [Field; 3] =
    [counted(3, Message(&POLICY)), counted(4, Message(&DESCRIPTOR)), uncounted(8, Message(&STRUCT))];
static POLICY: [Field; 1] = [counted(5, Skipped)];
static STRUCT: [Field; 1] = [counted(1, Message(&STRUCT_ENTRY))];
static STRUCT_ENTRY: [Field; 1] = [uncounted(2, Message(&VALUE))];
static VALUE: [Field; 2] = [uncounted(5, Message(&STRUCT)), uncounted(6, Message(&LIST))];
static LIST: [Field; 1] = [counted(1, Message(&VALUE))];

const fn counted(number: u32, content: Content) -> Field {
    Field { number, is_counted: true, content }
}

const fn uncounted(number: u32, content: Content) -> Field {
    Field { number, is_counted: false, content }
}

pub(super) fn of_response(response: &[u8]) -> Result<usize, Malformed> {
    let mut count = 0;
    add(Fields::new(response), &RESPONSE, &mut count)?;
    Ok(count)
}

fn add(mut message: Fields<'_>, fields: &[Field], count: &mut usize) -> Result<(), Malformed> {
    while let Some(key) = message.next_key()? {
        let Some(field) = fields.iter().find(|field| field.number == key.number) else {
            message.skip(key)?;
            continue;
        };
        *count += usize::from(field.is_counted);
        match field.content {
            Skipped => message.skip(key)?,
            Message(fields) => add(message.message(key)?, fields, count)?,
            Config => {
                let _ = add(Fields::new(message.bytes(key)?), &CONFIG, count);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use prost_types::{Any, ListValue, Struct, Value, value::Kind};

    use super::*;
    use proto::{
        envoy::service::discovery::v3::DiscoveryResponse,
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

    /// A response with `resources` times this one.
    fn response(config: &[u8], resources: usize) -> Vec<u8> {
        let resource = Any { type_url: "t".to_owned(), value: config.to_vec() };
        DiscoveryResponse { resources: vec![resource; resources], ..DiscoveryResponse::default() }
            .encode_to_vec()
    }

    #[test]
    fn counts_every_message_that_becomes_a_struct() {
        let config = config().encode_to_vec();
        assert_eq!(of_response(&response(&config, 1)), Ok(11));
        assert_eq!(of_response(&response(&config, 3)), Ok(33));
    }

    #[test]
    fn counts_empty_messages() {
        // Resources, and descriptors in one.
        assert_eq!(of_response(&[0x12, 0].repeat(4_000_000)), Ok(4_000_000));
        assert_eq!(of_response(&response(&[0x1a, 0].repeat(4_000_000), 1)), Ok(4_000_001));
    }

    #[test]
    fn stops_at_the_nesting_limit() {
        // Every descriptor holds the next one; prost rejects this too.
        let mut nested = Vec::new();
        for _ in 0..2_000 {
            let mut outer = vec![0x22];
            prost::encoding::encode_varint(nested.len() as u64, &mut outer);
            outer.append(&mut nested);
            nested = outer;
        }
        nested[0] = 0x1a;
        assert!(RateLimitConfig::decode(&*nested).is_err());
        assert!(of_response(&response(&nested, 1)).unwrap() <= 102);
    }

    proptest! {
        #[test]
        fn counts_at_most_one_message_a_byte(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        ) {
            if let Ok(count) = of_response(&bytes) {
                prop_assert!(count <= bytes.len());
            }
            let mut resource = config().encode_to_vec();
            for (at, byte) in changes {
                let at = at.index(resource.len());
                resource[at] = byte;
            }
            prop_assert!(of_response(&response(&resource, 1)).unwrap() <= resource.len());
        }
    }
}
