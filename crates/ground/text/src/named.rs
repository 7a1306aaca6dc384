//! Enums whose variants have names: metric labels, and values of rules files and settings.

/// Declares an enum with the name of each variant beside it.
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis enum $enum {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $enum {
            /// Every variant, in the order of its discriminant.
            $vis const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
