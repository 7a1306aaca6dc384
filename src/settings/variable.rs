//! One environment variable, and the macro that makes a table of them.
//!
//! [`vars`](super::vars) is that table.

use std::ops::Deref;

use super::{parse::InvalidValue, redis};

/// What is known of an environment variable, whatever the type of its value.
#[derive(Debug)]
pub struct Var {
    /// The name in the environment.
    pub name: &'static str,
    /// The heading of its group in the documentation.
    pub group: &'static str,
    /// The value when it is not set, as it would be written.
    pub default: &'static str,
    /// What it does, in a sentence of Markdown or two.
    pub doc: &'static str,
    /// How much of a value may be shown.
    pub secrecy: Secrecy,
}

impl Var {
    /// The part of a value that may be shown, if any.
    pub(super) fn shown(&self, value: String) -> Option<String> {
        match self.secrecy {
            Secrecy::Public => Some(value),
            Secrecy::Login => Some(redis::masked(&value)),
            Secrecy::Secret => None,
        }
    }
}

/// How much of a value may be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secrecy {
    /// All of it.
    Public,
    /// An address without the login in it.
    Login,
    /// Nothing.
    Secret,
}

/// A variable whose value is a `T`.
pub struct Setting<T> {
    pub(super) var: Var,
    pub(super) parse: Parse<T>,
}

/// Reads a value, or says why it is refused.
pub(super) type Parse<T> = fn(&str) -> Result<T, InvalidValue>;

/// A setting stands for its variable wherever the type of its value does not matter.
impl<T> Deref for Setting<T> {
    type Target = Var;

    fn deref(&self) -> &Var {
        &self.var
    }
}

/// Makes of each row a static [`Setting`], so that a misspelt name does not compile, of each group a struct with the
/// fields that its rows name, and of all rows together `ALL`.
macro_rules! table {
    (@secrecy) => { Secrecy::Public };
    (@secrecy login) => { Secrecy::Login };
    (@secrecy secret) => { Secrecy::Secret };
    (@parse $type:ty) => { <$type as parse::Value>::parse };
    (@parse $type:ty, $parse:expr) => { $parse };
    ($(
        $(#[$about:meta])*
        $vis:vis $group:ident in $heading:literal {
            $(
                $name:ident $($field:ident)? : $type:ty = $default:literal $(as $parse:expr)?, $doc:literal
                    $(, $secrecy:ident)?;
            )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, PartialEq, Debug)]
            $vis struct $group {
                $($( #[doc = $doc] $vis $field: $type, )?)*
            }

            impl $group {
                pub(super) fn read(reader: &mut Reader<'_>) -> Self {
                    Self { $($( $field: reader.read::<$type>(&$name), )?)* }
                }
            }

            $(
                #[doc = $doc]
                $vis static $name: Setting<$type> = Setting {
                    var: Var {
                        name: stringify!($name),
                        group: $heading,
                        default: $default,
                        doc: $doc,
                        secrecy: table!(@secrecy $($secrecy)?),
                    },
                    parse: table!(@parse $type $(, $parse)?),
                };
            )*
        )*

        /// Every variable, in the order of the documentation.
        pub static ALL: &[&Var] = &[ $($( &$name.var, )*)* ];
    };
}

pub(super) use table;
