//! What messages of spans and of metrics share.

use std::{
    io::{Read, Write},
    sync::LazyLock,
};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use crate::tracing::sampling;
use proto::opentelemetry::proto::{
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
};

/// The `service.instance.id` of this process unless one is set, the same for spans and metrics.
static INSTANCE: LazyLock<String> = LazyLock::new(sampling::uuid);

pub(crate) fn resource(set: &[(String, String)]) -> Resource {
    let mut attributes: Vec<_> = set.iter().map(|(key, value)| attribute(key, text(value.clone()))).collect();
    if !set.iter().any(|(key, _)| key == "service.instance.id") {
        attributes.push(attribute("service.instance.id", text(INSTANCE.clone())));
    }
    Resource { attributes }
}

pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope { name: "tollgate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

pub(crate) fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

pub(crate) fn text(text: impl Into<String>) -> any_value::Value {
    any_value::Value::StringValue(text.into())
}

pub(crate) fn compressed(plain: &[u8]) -> Bytes {
    // Writing to a Vec cannot fail.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let _ = gzip.write_all(plain);
    gzip.finish().unwrap_or_default().into()
}

/// What [`compressed`] was made from.
pub(crate) fn decompressed(compressed: &[u8]) -> Bytes {
    let mut plain = Vec::new();
    // Reading what was written here cannot fail.
    let _ = GzDecoder::new(compressed).read_to_end(&mut plain);
    plain.into()
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_compressed_message_has_the_same_content() {
        let plain = Resource { attributes: vec![attribute("key", text("value")); 100] }.encode_to_vec();
        let gzip = compressed(&plain);
        assert!(decompressed(&gzip) == plain && gzip.len() * 2 < plain.len(), "{}", gzip.len());
    }

    #[test]
    fn an_instance_has_one_random_id_unless_one_is_set() {
        let key = "service.instance.id";
        let [random, again] = [(); 2].map(|()| resource(&[]).attributes);
        assert!(random == again && random[0].key == key, "{random:?}");
        let set = resource(&[(key.to_owned(), "pod-7".to_owned())]).attributes;
        assert_eq!(set, [attribute(key, text("pod-7"))]);
    }
}
