//! Values of messages in protobuf's JSON mapping, and `null`, which leaves a field unset.
//!
//! [`request`](super::request) builds its messages of them.

use std::{borrow::Cow, fmt, iter::Empty, marker::PhantomData, str::FromStr};

use serde::de::{
    DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
    value::{MapDeserializer, SeqDeserializer},
};

use crate::text::cut;

/// A value of JSON.
pub(super) enum Json<'de, A: Access<'de>> {
    Map(A::Map),
    List(A::List),
    Text(Cow<'de, str>),
    Whole(Whole),
    Float(f64),
    Flag(bool),
    Null,
}

/// A whole number of JSON.
pub(super) type Whole = i128;

/// Reads the content of maps and lists.
pub(super) trait Access<'de> {
    type Error: Error;
    type Map: MapAccess<'de, Error = Self::Error>;
    type List: SeqAccess<'de, Error = Self::Error>;
}

impl<'de, M: MapAccess<'de>, L: SeqAccess<'de, Error = M::Error>> Access<'de> for (M, L) {
    type Error = M::Error;
    type Map = M;
    type List = L;
}

type NoMap<'de, E> = MapDeserializer<'de, Empty<((), ())>, E>;
type NoList<E> = SeqDeserializer<Empty<()>, E>;
type Scalar<'de, E> = Json<'de, (NoMap<'de, E>, NoList<E>)>;

impl<'de, A: Access<'de>> Json<'de, A> {
    /// The error of another type. `serde`'s errors repeat a text of any length; this one cuts it.
    pub(super) fn unexpected(&self, expected: &str) -> A::Error {
        let found = match self {
            Self::Map(_) => "map".to_owned(),
            Self::List(_) => "sequence".to_owned(),
            Self::Text(text) => format!("string {:?}", cut(text)),
            Self::Whole(number) => format!("number `{number}`"),
            Self::Float(number) => format!("number `{number}`"),
            Self::Flag(flag) => format!("boolean `{flag}`"),
            Self::Null => "null".to_owned(),
        };
        Error::custom(format_args!("invalid type: {found}, expected {expected}"))
    }

    pub(super) fn map(self) -> Result<A::Map, A::Error> {
        match self {
            Self::Map(map) => Ok(map),
            other => Err(other.unexpected("a map")),
        }
    }

    pub(super) fn list(self) -> Result<A::List, A::Error> {
        match self {
            Self::List(list) => Ok(list),
            other => Err(other.unexpected("a list")),
        }
    }
}

/// A part of a message: reads itself from JSON.
pub(super) trait Part<'de>: Sized {
    type Value;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error>;
}

/// A part as serde deserializes it.
pub(super) struct Seed<P>(pub(super) P);

impl<'de, P: Part<'de>> DeserializeSeed<'de> for Seed<P> {
    type Value = P::Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<P::Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, P: Part<'de>> Visitor<'de> for Seed<P> {
    type Value = P::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<P::Value, M::Error> {
        self.0.read(Json::<(M, NoList<M::Error>)>::Map(map))
    }

    fn visit_seq<L: SeqAccess<'de>>(self, list: L) -> Result<P::Value, L::Error> {
        self.0.read(Json::<(NoMap<'de, L::Error>, L)>::List(list))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<P::Value, E> {
        self.0.read(Scalar::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<P::Value, E> {
        self.0.read(Scalar::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<P::Value, E> {
        self.0.read(Scalar::Whole(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<P::Value, E> {
        self.0.read(Scalar::Whole(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<P::Value, E> {
        self.0.read(Scalar::Float(number))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<P::Value, E> {
        self.0.read(Scalar::Flag(flag))
    }

    fn visit_unit<E: Error>(self) -> Result<P::Value, E> {
        self.0.read(Scalar::Null)
    }
}

/// A field's value, which `null` leaves unset.
struct Field<P>(P);

impl<'de, P: Part<'de>> Part<'de> for Field<P> {
    type Value = Option<P::Value>;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        match json {
            Json::Null => Ok(None),
            json => self.0.read(json).map(Some),
        }
    }
}

/// A string.
pub(super) struct Text;

impl<'de> Part<'de> for Text {
    type Value = Cow<'de, str>;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<Self::Value, A::Error> {
        match json {
            Json::Text(text) => Ok(text),
            other => Err(other.unexpected("a string")),
        }
    }
}

/// A boolean.
pub(super) struct Flag;

impl<'de> Part<'de> for Flag {
    type Value = bool;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<bool, A::Error> {
        match json {
            Json::Flag(flag) => Ok(flag),
            other => Err(other.unexpected("a boolean")),
        }
    }
}

/// An unsigned integer, as a number or a decimal string.
pub(super) struct Number<N>(PhantomData<N>);

impl<N> Number<N> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

/// The type of an unsigned integer.
pub(super) trait Unsigned: TryFrom<Whole> + FromStr {
    /// A float without a fraction, unless it is out of range.
    fn of_float(number: f64) -> Option<Self>;
}

impl Unsigned for u32 {
    fn of_float(number: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range")]
        (0.0..=f64::from(Self::MAX)).contains(&number).then_some(number as Self)
    }
}

impl Unsigned for u64 {
    /// 2^64 - 1 is no float, and is written as 2^64.
    fn of_float(number: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range")]
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        (0.0..=Self::MAX as f64).contains(&number).then_some(number as Self)
    }
}

impl<'de, N: Unsigned> Part<'de> for Number<N> {
    type Value = N;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<N, A::Error> {
        const EXPECTED: &str = "an unsigned integer or decimal string";
        match json {
            Json::Text(text) => {
                text.parse().map_err(|_| Error::custom(format_args!("{:?} is not {EXPECTED}", cut(&text))))
            }
            Json::Whole(number) => N::try_from(number).map_err(|_| out_of_range(number)),
            Json::Float(number) if number.fract() != 0.0 => {
                Err(Error::custom(format_args!("expected an integer, not {number}")))
            }
            Json::Float(number) => N::of_float(number).ok_or_else(|| out_of_range(number)),
            other => Err(other.unexpected(EXPECTED)),
        }
    }
}

pub(super) fn out_of_range<E: Error>(number: impl fmt::Display) -> E {
    E::custom(format_args!("the number {number} is out of range"))
}

/// The name of a field: one of these.
pub(super) struct Name(pub(super) &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<&'static str, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
        let known = self.0.iter().find(|known| **known == name);
        known.copied().ok_or_else(|| E::custom(format_args!("unrecognized field name '{}'", cut(name))))
    }
}

/// The value of a field, unless it is `null`.
pub(super) fn value<'de, A: MapAccess<'de>, P: Part<'de>>(
    map: &mut A,
    part: P,
) -> Result<Option<P::Value>, A::Error> {
    map.next_value_seed(Seed(Field(part)))
}
