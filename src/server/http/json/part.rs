//! The values that messages in protobuf's JSON mapping consist of, and what `null` leaves unset.
//!
//! [`request`](super::request) builds its messages of them.

use std::{borrow::Cow, fmt, marker::PhantomData, str::FromStr};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::text::cut;

/// What a value is made of. A type's own way to read itself: `serde`'s errors repeat whatever stands in the
/// place of what was expected, at any length, so that texts are met here first.
pub(super) trait Part<'de>: Sized {
    type Value;
    const EXPECTED: &'static str;

    fn of_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(Error::custom(format_args!("invalid type: map, expected {}", Self::EXPECTED)))
    }

    fn of_list<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(Error::custom(format_args!("invalid type: sequence, expected {}", Self::EXPECTED)))
    }

    fn of_text<E: Error>(self, text: Cow<'de, str>) -> Result<Self::Value, E> {
        let text = cut(&text);
        Err(Error::custom(format_args!("invalid type: string {text:?}, expected {}", Self::EXPECTED)))
    }

    fn of_whole<E: Error>(self, number: Whole) -> Result<Self::Value, E> {
        Err(Error::custom(format_args!("invalid type: number `{number}`, expected {}", Self::EXPECTED)))
    }

    fn of_float<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Err(Error::custom(format_args!("invalid type: number `{number}`, expected {}", Self::EXPECTED)))
    }

    fn of_flag<E: Error>(self, flag: bool) -> Result<Self::Value, E> {
        Err(Error::custom(format_args!("invalid type: boolean `{flag}`, expected {}", Self::EXPECTED)))
    }

    fn of_null<E: Error>(self) -> Result<Self::Value, E> {
        Err(Error::custom(format_args!("invalid type: null, expected {}", Self::EXPECTED)))
    }
}

/// A whole number of JSON.
pub(super) type Whole = i128;

/// A part as serde knows it.
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
        f.write_str(P::EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<P::Value, A::Error> {
        self.0.of_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<P::Value, A::Error> {
        self.0.of_list(list)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<P::Value, E> {
        self.0.of_text(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<P::Value, E> {
        self.0.of_text(Cow::Owned(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<P::Value, E> {
        self.0.of_whole(number.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<P::Value, E> {
        self.0.of_whole(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<P::Value, E> {
        self.0.of_float(number)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<P::Value, E> {
        self.0.of_flag(flag)
    }

    fn visit_unit<E: Error>(self) -> Result<P::Value, E> {
        self.0.of_null()
    }
}

/// A field's value, which `null` leaves unset.
struct Field<P>(P);

impl<'de, P: Part<'de>> Part<'de> for Field<P> {
    type Value = Option<P::Value>;
    const EXPECTED: &'static str = P::EXPECTED;

    fn of_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        self.0.of_map(map).map(Some)
    }

    fn of_list<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        self.0.of_list(list).map(Some)
    }

    fn of_text<E: Error>(self, text: Cow<'de, str>) -> Result<Self::Value, E> {
        self.0.of_text(text).map(Some)
    }

    fn of_whole<E: Error>(self, number: Whole) -> Result<Self::Value, E> {
        self.0.of_whole(number).map(Some)
    }

    fn of_float<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        self.0.of_float(number).map(Some)
    }

    fn of_flag<E: Error>(self, flag: bool) -> Result<Self::Value, E> {
        self.0.of_flag(flag).map(Some)
    }

    fn of_null<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Any text.
pub(super) struct Text;

impl<'de> Part<'de> for Text {
    type Value = Cow<'de, str>;
    const EXPECTED: &'static str = "a string";

    fn of_text<E: Error>(self, text: Cow<'de, str>) -> Result<Self::Value, E> {
        Ok(text)
    }
}

/// A flag.
pub(super) struct Flag;

impl Part<'_> for Flag {
    type Value = bool;
    const EXPECTED: &'static str = "a boolean";

    fn of_flag<E: Error>(self, flag: bool) -> Result<bool, E> {
        Ok(flag)
    }
}

/// A whole number without a sign, as a number or as text.
pub(super) struct Number<N>(PhantomData<N>);

impl<N> Number<N> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

/// A type of such numbers.
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
    /// The largest number has no float of its own: 2^64 stands for it, and is taken for it.
    fn of_float(number: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range")]
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        (0.0..=Self::MAX as f64).contains(&number).then_some(number as Self)
    }
}

impl<'de, N: Unsigned> Part<'de> for Number<N> {
    type Value = N;
    const EXPECTED: &'static str = "an unsigned integer or decimal string";

    fn of_text<E: Error>(self, text: Cow<'de, str>) -> Result<N, E> {
        let not_one = |_| E::custom(format_args!("{:?} is not {}", cut(&text), Self::EXPECTED));
        text.parse().map_err(not_one)
    }

    fn of_whole<E: Error>(self, number: Whole) -> Result<N, E> {
        N::try_from(number).map_err(|_| out_of_range(number))
    }

    fn of_float<E: Error>(self, number: f64) -> Result<N, E> {
        if number.fract() != 0.0 {
            return Err(E::custom(format_args!("expected an integer, not {number}")));
        }
        N::of_float(number).ok_or_else(|| out_of_range(number))
    }
}

pub(super) fn out_of_range<E: Error>(number: impl fmt::Display) -> E {
    E::custom(format_args!("the number {number} is out of range"))
}

/// The name of a field, which is one of these.
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
