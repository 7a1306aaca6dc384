//! One environment variable, and how the table of them is written down.
//!
//! [`vars`](super::vars) is that table.

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    /// The name in the environment.
    pub name: &'static str,
    /// The heading it stands under in the documentation.
    pub group: &'static str,
    /// What counts when it is not set, in the form in which it would be set.
    pub default: &'static str,
    /// What it does, in a sentence of Markdown or two.
    pub doc: &'static str,
}

/// Makes a constant of each variable, so that a misspelt name in the reader does not compile, and `ALL`
/// of them together.
macro_rules! variables {
    ($( $group:literal { $( $name:ident = $default:literal, $doc:literal; )* } )*) => {
        $($(
            #[doc = $doc]
            pub const $name: Var =
                Var { name: stringify!($name), group: $group, default: $default, doc: $doc };
        )*)*

        /// Every variable, in the order of the documentation.
        pub const ALL: &[Var] = &[ $($( $name, )*)* ];
    };
}

pub(super) use variables;
