//! Reads a line of an Envoy access log, in JSON or text, as the requests that Envoy sends for it.
//!
//! [`Fields`] has the values of a line by their operators, as the log's [`Format`] says. They fill in the descriptors of the
//! command line, such as `client=%REQ(X-CLIENT)%,path=/login`. Envoy sends no descriptor with an entry that is missing.

mod fields;
mod format;

pub use self::format::{Format, Template};
use self::{
    fields::{Fields, Unlogged},
    format::TIMES,
};
use super::{block::Block, instant};
use clock::Time;

/// How requests are made from the lines of an access log.
pub struct AccessLog {
    pub format: Format,
    pub domain: String,
    pub descriptors: Vec<Template>,
}

impl AccessLog {
    /// Adds the request of a line, with the line's number, to the block.
    pub(crate) fn read(&self, block: &mut Block, line: &str, number: u32) -> Result<(), String> {
        let fields = Fields::read(&self.format, line)?;
        let time = time(&fields)?;
        let mut is_sent = false;
        let mut is_unlogged = false;
        for Template(entries) in &self.descriptors {
            let filled =
                entries.iter().map(|(key, parts)| Ok(fields.filled(parts)?.map(|value| (key, value))));
            match filled.collect::<Result<Option<Vec<_>>, Unlogged>>() {
                Ok(Some(entries)) => {
                    is_sent = true;
                    for (key, value) in entries {
                        block.push_entry(key, &value);
                    }
                    block.push_descriptor(Some(1), false, None);
                }
                Ok(None) => {}
                Err(Unlogged(operator)) => {
                    is_unlogged = true;
                    block.notes.add_unlogged(operator, 1);
                }
            }
        }
        if is_sent {
            block.push_request(time, number, &self.domain);
        } else if !is_unlogged {
            block.notes.without_descriptors += 1;
        }
        Ok(())
    }
}

fn time(fields: &Fields<'_>) -> Result<Time, String> {
    let value = fields.exactly("START_TIME").value();
    let value = value.or_else(|| TIMES.iter().find_map(|name| fields.named(name).value()));
    let value = value.ok_or("the line has no start_time; log %START_TIME%")?;
    instant::parse(&value).or_else(|| instant::seconds(&value)).ok_or_else(|| {
        format!("start_time: expected a time such as \"2026-11-01T00:00:00.123Z\", got {value:?}")
    })
}

#[cfg(test)]
mod tests {
    use text::entries;

    use super::*;

    fn log(descriptors: &[&str], format: Option<&str>) -> AccessLog {
        let descriptors = descriptors.iter().map(|one| one.parse().unwrap()).collect();
        let format = format.map(|text| text.parse().unwrap()).unwrap_or_default();
        AccessLog { format, domain: "shop".to_owned(), descriptors }
    }

    /// The descriptors of the request of a line; none if Envoy sends no request.
    fn sent(log: &AccessLog, line: &str) -> Result<Vec<String>, String> {
        let mut block = Block::new("log".into(), 1, line.len());
        log.read(&mut block, line, 0)?;
        if block.times().next().is_none() {
            assert_eq!(block.notes.without_descriptors, 1);
            return Ok(Vec::new());
        }
        let request = block.request(0);
        let descriptor = |one: &limiter::Descriptor<'_>| {
            entries::write(one.entries.iter().map(|entry| (entry.key, Some(entry.value))))
        };
        Ok(request.descriptors.iter().map(descriptor).collect())
    }

    #[test]
    fn json_is_read_by_the_names_of_headers_and_operators() {
        let both = log(
            &[
                "client=%REQ(X-CLIENT)%,path=/login",
                "remote_address=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
            ],
            None,
        );
        let line = r#"{"start_time":"2026-11-01T00:00:00.123Z","x-client":"ann","downstream_remote_address":"10.0.0.1:80"}"#;
        assert_eq!(sent(&both, line).unwrap(), ["client=ann,path=/login", "remote_address=10.0.0.1"]);
        for (line, expected) in [
            (
                r#"{"start_time":"2026-11-01T00:00:00.123Z","X_Client":"ann"}"#,
                &["client=ann,path=/login"][..],
            ),
            (r#"{"start_time":"2026-11-01T00:00:00Z","x-client":null}"#, &[]),
            (r#"{"start_time":"2026-11-01T00:00:00Z","x-client":"-"}"#, &[]),
        ] {
            assert_eq!(sent(&both, line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn text_is_read_by_its_format() {
        let line = "[2026-11-01T00:00:00.123Z] \"GET /cart?a=b HTTP/1.1\" 200 - 0 5 1 0 \"10.0.0.1\" \"curl/8.0\" \"id\" \"shop.example\" \"10.1.0.1:80\"";
        let by_path = log(
            &[
                "host=%REQ(:AUTHORITY)%,path=%REQ(:PATH):5%",
                "flags=%RESPONSE_FLAGS%",
                "method=%REQ(:METHOD)%!",
            ],
            None,
        );
        assert_eq!(sent(&by_path, line).unwrap(), ["host=shop.example,path=/cart", "method=GET!"]);
        let own = log(&["client=%REQ(X-CLIENT)%"], Some("%START_TIME% <%REQ(x-client)%>\n"));
        assert_eq!(sent(&own, "2026-11-01T00:00:00Z <a,b>").unwrap(), ["client=a\\,b"]);
        let error = sent(&own, "2026-11-01T00:00:00Z a").unwrap_err();
        assert!(error.starts_with("column 1: expected \" <\""), "{error}");
        assert!(sent(&own, "noon <a>").unwrap_err().starts_with("start_time: expected a time"));
    }
}
