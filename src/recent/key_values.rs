//! How callers' values are shown: some are e-mail addresses and tokens.

use std::borrow::Cow;

use ring::digest;

/// `KEY_VALUES`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyValues {
    /// As they came.
    #[default]
    Plain,
    /// The first 16 digits of their SHA-256, so that equal values are recognised.
    Hashed,
    /// Not at all.
    Hidden,
}

impl KeyValues {
    /// A value as it is shown. An empty one shows nothing of a caller.
    #[must_use]
    pub fn shown(self, value: &str) -> Cow<'_, str> {
        match self {
            Self::Plain => Cow::Borrowed(value),
            _ if value.is_empty() => Cow::Borrowed(value),
            Self::Hashed => Cow::Owned(hashed(value)),
            Self::Hidden => Cow::Borrowed("***"),
        }
    }

    /// The name in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hashed => "hashed",
            Self::Hidden => "hidden",
        }
    }
}

fn hashed(value: &str) -> String {
    use std::fmt::Write as _;
    let digest = digest::digest(&digest::SHA256, value.as_bytes());
    let mut text = String::from("sha256:");
    for byte in digest.as_ref().iter().take(8) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_the_setting_says() {
        let shown = |values: KeyValues| ["ann", ""].map(|value| values.shown(value).into_owned());
        assert_eq!(shown(KeyValues::Plain), ["ann", ""]);
        assert_eq!(shown(KeyValues::Hidden), ["***", ""]);
        // printf %s ann | sha256sum
        assert_eq!(shown(KeyValues::Hashed), ["sha256:49915e0d7d4b402e", ""]);
    }
}
