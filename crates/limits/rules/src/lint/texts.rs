//! Texts that are compared with those of requests, but are written as if they were something else: a network, a regular
//! expression, a template, or characters that only look like others.

use std::net::IpAddr;

pub(super) type Remark = (String, String);

/// A remark about a domain, a key or a value.
pub(super) fn of_text(text: &str) -> Option<Remark> {
    template(text).or_else(|| blanks(text)).or_else(|| look_alikes(text))
}

/// A remark about the value of a key.
pub(super) fn of_value(key: &str, value: &str) -> Option<Remark> {
    of_text(value).or_else(|| network(key, value)).or_else(|| regular_expression(value))
}

fn template(text: &str) -> Option<Remark> {
    let (_, rest) = text.split_once("{{")?;
    rest.contains("}}").then(|| {
        let message = "this is a template's `{{ … }}`, which is compared as text".to_owned();
        (message, "check the rendered file: `helm template` prints it".to_owned())
    })
}

fn blanks(text: &str) -> Option<Remark> {
    let end = match (text.starts_with(char::is_whitespace), text.ends_with(char::is_whitespace)) {
        (true, _) => "begins",
        (false, true) => "ends",
        (false, false) => return None,
    };
    let message = format!("this text {end} with a blank, so it matches only requests that send the blank");
    Some((message, format!("write `{}`", text.trim().escape_debug())))
}

/// Finds an invisible character, or one that looks like a character of ASCII in a text whose other characters are ASCII.
fn look_alikes(text: &str) -> Option<Remark> {
    if text.is_ascii() {
        return None;
    }
    let code = |c: char| format!("U+{:04X}", u32::from(c));
    if let Some(invisible) = text.chars().find(|c| is_invisible(*c)) {
        let message = format!("this text contains the invisible character {}", code(invisible));
        return Some((message, "type the text again, without it".to_owned()));
    }
    let meant: String = text.chars().map(|c| looks_like(c).unwrap_or(c)).collect();
    let foreign = text.chars().find(|c| looks_like(*c).is_some())?;
    let is_mixed = meant.is_ascii() && text.contains(|c: char| c.is_ascii_alphanumeric());
    is_mixed.then(|| {
        let message = format!("`{foreign}` here is {}, which only looks like ASCII", code(foreign));
        (message, format!("requests that send `{meant}` do not match: type the text again"))
    })
}

const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

/// The ASCII character that this one looks like, after Unicode's list of confusable characters.
fn looks_like(c: char) -> Option<char> {
    const LETTERS: [(&str, &str); 2] = [
        ("АВЕЅІЈКМНОРСТУХаеѕіјорсухԁԛԝһ", "ABESIJKMHOPCTYXaesijopcyxdqwh"),
        ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧονρ", "ABEZHIKMNOPTYXovp"),
    ];
    match c {
        _ if c.is_ascii() => None,
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}' => Some(' '),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => Some('-'),
        '\u{2018}' | '\u{2019}' => Some('\''),
        '\u{201c}' | '\u{201d}' => Some('"'),
        '\u{2044}' | '\u{2215}' => Some('/'),
        // Full-width forms are ASCII plus a constant.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0),
        _ => LETTERS.iter().find_map(|(foreign, ascii)| {
            foreign.chars().zip(ascii.chars()).find(|(letter, _)| *letter == c).map(|(_, ascii)| ascii)
        }),
    }
}

/// A network in CIDR notation. Envoy sends one for `masked_remote_address`.
fn network(key: &str, value: &str) -> Option<Remark> {
    let (address, bits) = value.split_once('/').filter(|_| key != "masked_remote_address")?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok().filter(|bits| *bits <= if address.is_ipv4() { 32 } else { 128 })?;
    let family = if address.is_ipv4() { "v4" } else { "v6" };
    let mut help = format!(
        "use Envoy's action `masked_remote_address` with `{family}_prefix_mask_len: {bits}`, and the key `masked_remote_address`"
    );
    if let (IpAddr::V4(address), 8 | 16 | 24) = (address, bits) {
        let octets = address.octets().into_iter().take(usize::from(bits / 8));
        let prefix = octets.map(|octet| octet.to_string()).collect::<Vec<_>>().join(".");
        help = format!("write `{prefix}.*`, or {help}");
    }
    Some((format!("the network `{value}` is compared as text, so no address in it matches"), help))
}

fn regular_expression(value: &str) -> Option<Remark> {
    let body = value.trim_start_matches('^').trim_end_matches('$');
    let has_anchor = body.len() < value.len() && !body.is_empty();
    let has_class = value.split('[').skip(1).any(|rest| {
        let class = rest.split(']').next().filter(|class| class.len() < rest.len());
        class.is_some_and(|class| {
            class.starts_with('^') || ["a-z", "A-Z", "0-9"].iter().any(|range| class.contains(range))
        })
    });
    let has_group =
        value.contains("(?") || (value.contains('(') && value.contains('|') && value.contains(')'));
    let has_escape = [r"\d", r"\w", r"\s", r"\.", r"\/"].iter().any(|escape| value.contains(escape));
    // `example.*` may be a wildcard for `example.com`.
    let has_any = value.contains(".+") || value.contains("/.*") || value.starts_with(".*");
    (has_anchor || has_class || has_group || has_escape || has_any).then(|| {
        let message = "this looks like a regular expression, but values are compared as text, with `*` for any characters";
        let help = "write the text with `*`, or match in Envoy: the action `header_value_match` has `safe_regex_match`, and sends a value of your choice";
        (message.to_owned(), help.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(key: &str, value: &str) -> String {
        of_value(key, value).map(|(message, help)| format!("{message}; {help}")).unwrap_or_default()
    }

    #[test]
    fn names_what_a_value_was_meant_to_be() {
        for (value, part) in [
            (
                "10.0.0.0/8",
                "write `10.*`, or use Envoy's action `masked_remote_address` with `v4_prefix_mask_len: 8`",
            ),
            ("192.168.0.0/20", "matches; use Envoy's action"),
            ("2001:db8::/32", "`v6_prefix_mask_len: 32`"),
            ("^/api/", "regular expression"),
            ("/users/[0-9]+", "regular expression"),
            (r"/v\d/x", "regular expression"),
            ("/(cart|shop)", "regular expression"),
            ("/api/.*", "regular expression"),
            ("/api/.+", "regular expression"),
            (" /cart", "begins with a blank"),
            ("gold ", "write `gold`"),
            ("gold\u{a0}", "ends with a blank"),
            (
                "g\u{43e}ld",
                "`\u{43e}` here is U+043E, which only looks like ASCII; requests that send `gold`",
            ),
            ("a\u{2013}b", "requests that send `a-b`"),
            ("go\u{200b}ld", "invisible character U+200B"),
            ("\u{ff47}old", "requests that send `gold`"),
            ("{{ .Values.plan }}", "a template's"),
        ] {
            assert!(message("k", value).contains(part), "{value}: {}", message("k", value));
        }
    }

    #[test]
    fn common_values_have_no_remark() {
        for value in [
            "",
            "/",
            "/api/*",
            "/*/export",
            "example.*",
            "10.0.0.1",
            "10.*",
            "1/2",
            "10.0.0.0/33",
            "$5",
            "a^b",
            "\u{43c}\u{438}\u{440}",
            "caf\u{e9}",
            "(x)",
            "a|b",
            "[::1]",
            "/a[1]",
            "\u{43e}",
            "{x}",
            "C:\\x",
            "a b",
            "^",
            "\u{4e2d}\u{6587}",
        ] {
            assert_eq!(message("k", value), "", "{value}");
        }
        assert_eq!(message("masked_remote_address", "10.0.0.0/8"), "");
    }
}
