//! Reads a request in protobuf's JSON mapping, as a stream: items beyond a bound are counted and not kept, and
//! texts without escapes are borrowed from the body.
//!
//! Both forms of a field's name are read, and numbers as strings; unknown fields are rejected. A property test compares
//! the reader with `prost-reflect`, which builds a map for each message before anything can be counted: a body of
//! 1,000,000 `{}` took 196 MB.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::de::{DeserializeSeed as _, Error, MapAccess as _, SeqAccess as _};

use super::part::{Access, Flag, Json, Name, Number, Part, Seed, Text, fields, out_of_range, value};
use limiter::{self, Bounds, Entry, LimitOverride};
use proto::envoy::r#type::v3::RateLimitUnit;
use text::{cut, cut_display};

/// A request that owns its texts with escapes.
#[derive(Debug, Default)]
pub(super) struct Request<'a> {
    domain: Cow<'a, str>,
    descriptors: Vec<Descriptor<'a>>,
    excess: usize,
    hits_addend: u32,
}

#[derive(Debug, Default)]
struct Descriptor<'a> {
    entries: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    excess: usize,
    limit: Option<LimitOverride>,
    hits_addend: Option<u64>,
    is_negative_hits: bool,
}

/// Reads a request and keeps the descriptors and entries within the bounds.
pub(super) fn read(body: &[u8], bounds: Bounds) -> Result<Request<'_>, String> {
    if let Some(name) = long_name(body) {
        return Err(cut_display(format_args!("unrecognized field name '{}'", String::from_utf8_lossy(name))));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let request =
        Seed(RequestPart(bounds)).deserialize(&mut json).and_then(|request| json.end().map(|()| request));
    request.map_err(cut_display)
}

/// The maximum length of a field's name: 17 letters, each of which may be an escape of six.
const LONGEST_NAME: usize = 17 * 6;

/// The beginning of a name that is longer than any field's. It is checked before anything is read: `serde_json` copies a
/// name with escapes into a buffer that doubles as it grows.
fn long_name(body: &[u8]) -> Option<&[u8]> {
    let mut rest = body;
    loop {
        let start = rest.iter().position(|byte| *byte == b'"')?;
        let text = rest.get(start.checked_add(1)?..)?;
        let mut escaped = false;
        let end = text.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        rest = text.get(end.checked_add(1)?..)?;
        if end > LONGEST_NAME && rest.trim_ascii_start().first() == Some(&b':') {
            return text.get(..LONGEST_NAME);
        }
    }
}

impl Request<'_> {
    pub(super) fn into_owned(self) -> Request<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let descriptors = self.descriptors.into_iter().map(|one| Descriptor {
            entries: one.entries.into_iter().map(|(key, value)| (owned(key), owned(value))).collect(),
            excess: one.excess,
            limit: one.limit,
            hits_addend: one.hits_addend,
            is_negative_hits: one.is_negative_hits,
        });
        Request {
            domain: owned(self.domain),
            descriptors: descriptors.collect(),
            excess: self.excess,
            hits_addend: self.hits_addend,
        }
    }

    pub(super) fn to_limiter(&self) -> limiter::Request<'_> {
        limiter::Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(Descriptor::to_limiter).collect(),
            excess_descriptors: self.excess,
            hits_addend: self.hits_addend,
        }
    }
}

impl Descriptor<'_> {
    fn to_limiter(&self) -> limiter::Descriptor<'_> {
        limiter::Descriptor {
            entries: self.entries.iter().map(|(key, value)| Entry { key, value }).collect(),
            excess_entries: self.excess,
            limit: self.limit,
            hits_addend: self.hits_addend,
            is_negative_hits: self.is_negative_hits,
        }
    }
}

struct RequestPart(Bounds);

impl<'de> Part<'de> for RequestPart {
    type Value = Request<'de>;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut map = json.map()?;
        let mut request = Request::default();
        fields!(map {
            "domain" => request.domain = value(&mut map, Text)?.unwrap_or(request.domain),
            "descriptors" => {
                if let Some(kept) = value(&mut map, Descriptors(self.0))? {
                    (request.descriptors, request.excess) = kept;
                }
            },
            "hitsAddend" | "hits_addend" => {
                request.hits_addend = value(&mut map, Number::new())?.unwrap_or(request.hits_addend);
            },
        });
        Ok(request)
    }
}

/// A list of descriptors: those within the bounds, and the number of further ones.
struct Descriptors(Bounds);

impl<'de> Part<'de> for Descriptors {
    type Value = (Vec<Descriptor<'de>>, usize);

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut list = json.list()?;
        let (mut kept, mut excess) = (Vec::new(), 0_usize);
        loop {
            let is_kept = kept.len() < self.0.descriptors;
            let entries = if is_kept { self.0.entries } else { 0 };
            match list.next_element_seed(Seed(DescriptorPart(entries)))? {
                None => return Ok((kept, excess)),
                Some(descriptor) if is_kept => kept.push(descriptor),
                Some(_) => excess = excess.saturating_add(1),
            }
        }
    }
}

/// A descriptor, with the maximum number of entries.
struct DescriptorPart(usize);

impl<'de> Part<'de> for DescriptorPart {
    type Value = Descriptor<'de>;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut map = json.map()?;
        let mut read = Descriptor::default();
        fields!(map {
            "entries" => {
                if let Some(kept) = value(&mut map, Entries(self.0))? {
                    (read.entries, read.excess) = kept;
                }
            },
            "limit" => read.limit = value(&mut map, Limit)?.or(read.limit),
            "hitsAddend" | "hits_addend" => {
                read.hits_addend = value(&mut map, Number::new())?.or(read.hits_addend);
            },
            "isNegativeHits" | "is_negative_hits" => {
                read.is_negative_hits = value(&mut map, Flag)?.unwrap_or(read.is_negative_hits);
            },
        });
        Ok(read)
    }
}

/// A list of entries, with the maximum number: those that are kept, and the number of further ones.
struct Entries(usize);

impl<'de> Part<'de> for Entries {
    type Value = (Vec<(Cow<'de, str>, Cow<'de, str>)>, usize);

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut list = json.list()?;
        let (mut kept, mut excess) = (Vec::new(), 0_usize);
        while let Some(entry) = list.next_element_seed(Seed(EntryPart))? {
            if kept.len() < self.0 {
                kept.push(entry);
            } else {
                excess = excess.saturating_add(1);
            }
        }
        Ok((kept, excess))
    }
}

struct EntryPart;

impl<'de> Part<'de> for EntryPart {
    type Value = (Cow<'de, str>, Cow<'de, str>);

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut map = json.map()?;
        let mut entry = Self::Value::default();
        fields!(map {
            "key" => entry.0 = value(&mut map, Text)?.unwrap_or(entry.0),
            "value" => entry.1 = value(&mut map, Text)?.unwrap_or(entry.1),
        });
        Ok(entry)
    }
}

struct Limit;

impl<'de> Part<'de> for Limit {
    type Value = LimitOverride;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        let mut map = json.map()?;
        let mut limit = LimitOverride { requests_per_unit: 0, unit: 0 };
        fields!(map {
            "requestsPerUnit" | "requests_per_unit" => {
                let read = value(&mut map, Number::new())?;
                limit.requests_per_unit = read.unwrap_or(limit.requests_per_unit);
            },
            "unit" => limit.unit = value(&mut map, Unit)?.unwrap_or(limit.unit),
        });
        Ok(limit)
    }
}

struct Unit;

impl<'de> Part<'de> for Unit {
    type Value = i32;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<i32, A::Error> {
        match json {
            Json::Text(text) => RateLimitUnit::from_str_name(&text)
                .map(i32::from)
                .ok_or_else(|| Error::custom(format_args!("unrecognized enum value '{}'", cut(&text)))),
            Json::Whole(number) => i32::try_from(number).map_err(|_| out_of_range(number)),
            other => Err(other.unexpected("a string or integer")),
        }
    }
}

/// Compares the reader with `prost-reflect`: both accept the same texts, and read the same content.
#[cfg(any(test, feature = "testing"))]
pub(super) fn fuzz(body: &[u8]) {
    let none = Bounds { descriptors: usize::MAX, entries: usize::MAX };
    match (read(body, none), by_prost_reflect(body)) {
        (Ok(ours), Ok(message)) => assert_eq!(ours.to_limiter(), crate::wire::request(&message)),
        (Err(error), Err(_)) => assert!(error.len() <= text::LONGEST),
        (ours, theirs) => assert!(ours.is_ok() == theirs.is_ok(), "{ours:?} but {theirs:?}"),
    }
}

#[cfg(any(test, feature = "testing"))]
fn by_prost_reflect(body: &[u8]) -> Result<proto::envoy::service::ratelimit::v3::RateLimitRequest, String> {
    let message = proto::descriptor("envoy.service.ratelimit.v3.RateLimitRequest")?;
    let mut json = serde_json::Deserializer::from_slice(body);
    let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(true);
    let read = prost_reflect::DynamicMessage::deserialize_with_options(message, &mut json, &options)
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| error.to_string())?;
    read.transcode_to().map_err(|error| error.to_string())
}
