//! The requests and replies of the admin API: the one description of their shape.
//!
//! `admin` fills these types, the commands of `cli` read them, `fleet` publishes some of them, and `docs/reference/openapi.yaml` is
//! made from them. A replica of another version may leave fields out or add some, so every field has a default and unknown
//! ones are ignored. A parameter such as that of `KeyRefusals<E>` is for who has the same JSON in another form.

/// Types of JSON objects, a field a row, each with its description. A field with `?` is absent if it has its default value.
/// In the document, a description that lists words ("`a`, `b` or `c`.") is an enum.
macro_rules! shapes {
    ($($(#[$of:meta])* $name:ident $(<$parameter:ident = $default:ty>)? { $($fields:tt)* })*) => {
        $(shapes!(@ [$(#[$of])* pub struct $name $(<$parameter = $default>)?] {} $($fields)*);)*
    };
    (@ $head:tt {$($done:tt)*} $(#[$of:meta])* $field:ident?: $type:ty $(, $about:literal)?; $($more:tt)*) => {
        shapes!(@ $head {
            $($done)*
            $(#[doc = $about])?
            #[serde(skip_serializing_if = "crate::is_default")]
            $(#[$of])*
            pub $field: $type,
        } $($more)*);
    };
    (@ $head:tt {$($done:tt)*} $(#[$of:meta])* $field:ident: $type:ty $(, $about:literal)?; $($more:tt)*) => {
        shapes!(@ $head { $($done)* $(#[doc = $about])? $(#[$of])* pub $field: $type, } $($more)*);
    };
    (@ [$($head:tt)*] {$($done:tt)*}) => {
        #[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Debug, Default)]
        #[serde(default)]
        $($head)* { $($done)* }
    };
}

mod overrides;
mod requests;
mod status;
mod traffic;

pub use self::{overrides::*, requests::*, status::*, traffic::*};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

shapes! {
    Error {
        error: String;
        needs_force?: bool, "True if the call succeeds with `\"force\": true`.";
    }

    /// An entry of a descriptor.
    #[derive(Eq, PartialOrd, Ord, Hash)]
    Entry {
        key: String;
        value: String, "By `KEY_VALUES`: plain, `sha256:` and 16 digits, or `***`.";
    }

    /// The replicas that the numbers are of.
    Whose {
        scope: String, "`all`, `this`, or the name of a replica.";
        replicas?: Option<OrUnknown<Answered>>, "The replicas that share the Redis; `unknown` while Redis is out of service.";
    }

    #[derive(Copy)]
    Answered {
        known: usize;
        answered: usize, "Those whose numbers are in the reply.";
    }
}

/// What is only known while Redis works.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, PartialEq, Debug)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OrUnknown<T> {
    Known(T),
    Unknown(Unknown),
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Unknown {
    Unknown,
}

impl<T> Default for OrUnknown<T> {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl<T> OrUnknown<T> {
    pub const UNKNOWN: Self = Self::Unknown(Unknown::Unknown);

    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(known) => Some(known),
            Self::Unknown(_) => None,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
