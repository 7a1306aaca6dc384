//! Words of commands that are shown to be pasted into a shell. `page/format.js` of the admin API has the same function.

use std::{borrow::Cow, fmt::Write as _};

use crate::is_unprintable;

/// A text as one word of a POSIX shell. A text with unprintable characters is a word of bash, zsh and ksh; it has no quote
/// inside, so that a shell which does not know `$'…'` reads one word too, with another text.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.into();
    }
    if !text.contains(is_unprintable) {
        return format!("'{}'", text.replace('\'', r"'\''")).into();
    }
    let mut word = "$'".to_owned();
    for character in text.chars() {
        if character == '\'' || character == '\\' || is_unprintable(character) {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                // Writing to a String cannot fail. An octal escape has at most three digits in every shell.
                let _ = write!(word, "\\{byte:03o}");
            }
        } else {
            word.push(character);
        }
    }
    word.push('\'');
    word.into()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// The words that a shell makes of a text.
    fn words(shell: &str, text: &str) -> Vec<String> {
        let script = format!("printf '%s\\0' {text}");
        let output = Command::new(shell).args(["-c", &script]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{script}: {output:?}");
        let output = String::from_utf8(output.stdout).unwrap();
        output.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn a_shell_reads_back_the_text_and_runs_nothing() {
        for (text, expected) in [
            ("shop", "shop"),
            ("path=/a/b,user=ann@example.org", "path=/a/b,user=ann@example.org"),
            ("", "''"),
            ("a b", "'a b'"),
            ("x';touch p #", r"'x'\'';touch p #'"),
            ("$(touch p) `touch p` $HOME !! * ~ \"", "'$(touch p) `touch p` $HOME !! * ~ \"'"),
            ("a\\", r"'a\'"),
            ("\u{1b}]0;x\u{7}\ntouch p\n'", r"$'\033]0;x\007\012touch p\012\047'"),
            ("\u{202e}8\\'; touch p #", r"$'\342\200\2568\134\047; touch p #'"),
        ] {
            assert_eq!(quoted(text), expected);
            assert_eq!(words("bash", &quoted(text)), [text], "{text:?}");
            assert_eq!(words("sh", &quoted(text)).len(), 1, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_one_word(text in "[a'\"\\\\$`!;|&<>(){}*?~# \n\r\t\u{1b}\u{7f}\u{202e}\u{fc}-]{0,12}") {
            let word = quoted(&text);
            prop_assert!(!word.contains(is_unprintable));
            prop_assert_eq!(words("bash", &word), [text.clone()]);
            prop_assert_eq!(words("sh", &word).len(), 1);
        }
    }
}
