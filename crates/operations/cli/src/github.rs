//! Workflow commands, which annotate a pull request on GitHub.

use text::printable;

/// `::error file=a.yaml,line=3::message`, with the properties that are given.
pub(super) fn annotation(level: &str, properties: &[(&str, String)], message: &str) -> String {
    let properties: Vec<String> = properties
        .iter()
        .map(|(name, value)| format!("{name}={}", escaped(value).replace(':', "%3A").replace(',', "%2C")))
        .collect();
    let blank = if properties.is_empty() { "" } else { " " };
    format!("::{level}{blank}{}::{}\n", properties.join(","), escaped(message))
}

fn escaped(text: &str) -> String {
    printable(&text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")).into_owned()
}
