//! An environment variable, and the macro that declares a table of them: [`vars`](super::vars).

use std::ops::Deref;

use text::InvalidValue;

/// An environment variable, whatever the type of its value.
#[derive(Debug)]
pub struct Var {
    pub name: &'static str,
    /// The heading of its group in the documentation.
    pub group: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
    pub secrecy: Secrecy,
}

impl Var {
    pub(super) fn shown(&self, value: String) -> Option<String> {
        match self.secrecy {
            Secrecy::Public => Some(without_login(value)),
            Secrecy::Login => Some(masked(&value)),
            Secrecy::Secret => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secrecy {
    Public,
    /// An address without its login.
    Login,
    Secret,
}

/// A value without `user:password@`, which an address may have where none is expected.
pub(super) fn without_login(value: String) -> String {
    let Some((before, after)) = value.rsplit_once('@') else { return value };
    let (scheme, login) = before.split_once("://").map_or(("", before), |(scheme, login)| (scheme, login));
    if !login.contains(':') {
        return value;
    }
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}***@{after}")
}

/// A value of `REDIS_URL` without anything that may be a password.
pub(super) fn masked(text: &str) -> String {
    let begin = text.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = text.split_at(begin);
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    if query.is_some_and(|query| query.contains('@')) {
        return format!("{scheme}***");
    }
    let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(_, hosts)| ("***@", hosts));
    let is_plain = scheme.is_empty() && login.is_empty();
    let hosts = if is_plain || looks_like_hosts(hosts) { hosts } else { "***" };
    format!("{scheme}{login}{hosts}{}", query.map_or("", |_| "?***"))
}

/// False if a URL may lack its host, so that a password is in the place of the port.
fn looks_like_hosts(text: &str) -> bool {
    let is_port =
        |text: &str| text.split('/').next().unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    text.split(',').all(|one| {
        let at = one.split_once("://").map_or(one, |(_, at)| at);
        let after_ipv6 = at.rsplit(']').next().unwrap_or(at);
        after_ipv6.split_once(':').is_none_or(|(_, port)| is_port(port))
    })
}

pub struct Setting<T> {
    pub(crate) var: Var,
    pub parse: fn(&str) -> Result<T, InvalidValue>,
}

/// A setting is passed as its variable where the type of the value does not matter.
impl<T> Deref for Setting<T> {
    type Target = Var;

    fn deref(&self) -> &Var {
        &self.var
    }
}

/// Declares a static [`Setting`] for each row, a struct for each group with the fields that its rows name, and the list of
/// all. Rows in `=> field: Struct { … }` fill all fields of a struct of another crate, which the group has in this field.
macro_rules! table {
    (@secrecy) => { Secrecy::Public };
    (@secrecy login) => { Secrecy::Login };
    (@secrecy secret) => { Secrecy::Secret };
    (@parse $type:ty) => { <$type as parse::Value>::parse };
    (@parse $type:ty, $parse:expr) => { $parse };
    (@setting $heading:literal $vis:vis $name:ident: $type:ty = $default:literal $(as $parse:expr)?, $doc:literal
        $(, $secrecy:ident)?) => {
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
    };
    ($(
        $(#[$about:meta])*
        $vis:vis $group:ident in $heading:literal {
            $(
                $(=> $part:ident: $owner:ident {
                    $(
                        $part_name:ident $part_field:ident: $part_type:ty = $part_default:literal
                            $(as $part_parse:expr)?, $part_doc:literal;
                    )*
                })?
                $name:ident $($field:ident)? : $type:ty = $default:literal $(as $parse:expr)?, $doc:literal
                    $(, $secrecy:ident)?;
            )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, PartialEq, Debug)]
            $vis struct $group {
                $(
                    $( $vis $part: $owner, )?
                    $( #[doc = $doc] $vis $field: $type, )?
                )*
            }

            impl $group {
                pub(crate) fn read(reader: &mut Reader<'_>) -> Self {
                    Self {
                        $(
                            $( $part: $owner { $( $part_field: reader.read::<$part_type>(&$part_name), )* }, )?
                            $( $field: reader.read::<$type>(&$name), )?
                        )*
                    }
                }
            }

            $(
                $($(
                    table!(@setting $heading $vis $part_name: $part_type = $part_default $(as $part_parse)?, $part_doc);
                )*)?
                table!(@setting $heading $vis $name: $type = $default $(as $parse)?, $doc $(, $secrecy)?);
            )*
        )*

        /// Every variable, in the order of the documentation.
        pub static ALL: &[&Var] = &[ $($( $($( &$part_name.var, )*)? &$name.var, )*)* ];
    };
}

pub(super) use table;
