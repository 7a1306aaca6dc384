//! Values of messages in protobuf's JSON mapping, and `null`, which leaves a field unset.
//!
//! [`request`](super::request) builds its messages of them.

use std::{borrow::Cow, fmt, iter::Empty, marker::PhantomData, str::FromStr};

use serde::de::{
    DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
    value::{MapDeserializer, SeqDeserializer},
};

use text::cut;

pub(super) enum Json<'de, A: Access<'de>> {
    Map(A::Map),
    List(A::List),
    Text(Cow<'de, str>),
    Whole(Whole),
    Float(f64),
    Flag(bool),
    Null,
}

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

impl<'de, N: TryFrom<Whole> + FromStr> Part<'de> for Number<N> {
    type Value = N;

    fn read<A: Access<'de>>(self, json: Json<'de, A>) -> Result<N, A::Error> {
        const EXPECTED: &str = "an unsigned integer or decimal string";
        let whole = match json {
            Json::Text(text) => {
                let invalid = |_| Error::custom(format_args!("{:?} is not {EXPECTED}", cut(&text)));
                return text.parse().map_err(invalid);
            }
            Json::Whole(number) => number,
            Json::Float(number) if number.fract() != 0.0 => {
                return Err(Error::custom(format_args!("expected an integer, not {number}")));
            }
            #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
            Json::Float(number) => match number as Whole {
                // The float that is nearest to the largest u64.
                LIMIT => Whole::from(u64::MAX),
                whole => whole,
            },
            other => return Err(other.unexpected(EXPECTED)),
        };
        N::try_from(whole).map_err(|_| out_of_range(whole))
    }
}

/// 2^64
const LIMIT: Whole = 1 << 64;

pub(super) fn out_of_range<E: Error>(number: impl fmt::Display) -> E {
    E::custom(format_args!("the number {number} is out of range"))
}

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

/// Reads the fields of a map: a list of names, and the value of each.
macro_rules! fields {
    ($map:ident { $($($name:literal)|+ => $read:expr,)* }) => {
        while let Some(name) = $map.next_key_seed(Name(&[$($($name),+),*]))? {
            match name {
                $($($name)|+ => $read,)*
                _ => {}
            }
        }
    };
}
pub(super) use fields;
