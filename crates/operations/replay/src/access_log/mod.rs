//! Reads a line of an Envoy access log, in JSON or text, as the requests that Envoy sends for it.
//!
//! [`Fields`] has the values of a line by their operators, as the log's [`Format`] says. A [`Gateway`] makes requests from
//! them: that of Envoy's configuration, or one with the descriptors of the command line, such as
//! `client=%REQ(X-CLIENT)%,path=/login`. Envoy sends no descriptor with an entry that is missing.

mod fields;
mod format;

use self::format::TIMES;
pub use self::format::{Format, Parts, Template};
pub(crate) use self::{
    fields::{Fields, Found},
    format::{Operator, Part},
};
use super::{
    block::Block,
    envoy::{Action, Call, Chosen, Descriptor, Gateway, HitsAddend, Line},
    instant,
};
use clock::Time;

/// How requests are made from the lines of an access log.
pub struct AccessLog {
    pub format: Format,
    /// Operators take the fields with their names, since the log may have another format.
    pub by_name: bool,
    pub gateway: Gateway,
}

impl AccessLog {
    /// One request for every line, with these descriptors.
    pub fn of_templates(domain: String, templates: Vec<Template>, format: Format) -> Self {
        let descriptor = |Template(entries): Template| {
            let action = |(key, parts)| ("--descriptor", Action::Template(key, parts));
            let actions = entries.into_iter().map(action).collect();
            Descriptor { actions, hits: HitsAddend::One, is_refund: false }
        };
        let descriptors = templates.into_iter().map(descriptor).collect();
        let gateway = Gateway::of_call(Call { domain, at_end: false, descriptors });
        Self { format, by_name: true, gateway }
    }

    /// Adds the requests of a line, with the line's number, to the block.
    pub(crate) fn read(&self, block: &mut Block, line: &str, number: u32) -> Result<(), String> {
        let fields = Fields::read(&self.format, line, self.by_name)?;
        let start = time(&fields)?;
        let line = Line::new(&fields, &self.gateway);
        let (requests, untold) = match line.route() {
            Chosen::Route(route) => route.sent(&line),
            Chosen::None => {
                block.aside.without_route += 1;
                return Ok(());
            }
            Chosen::Untold(untold) => (Vec::new(), vec![untold]),
        };
        block.aside.without_descriptors += u64::from(requests.is_empty() && untold.is_empty());
        for one in untold {
            *block.aside.untold.entry(one).or_default() += 1;
        }
        for request in requests {
            for descriptor in request.descriptors {
                for (key, value) in descriptor.entries {
                    block.push_entry(&key, &value);
                }
                block.push_descriptor(Some(descriptor.hits), descriptor.is_refund, None);
            }
            let time = request.delay.checked_mul(1000).and_then(|delay| start.micros().checked_add(delay));
            let time = time.ok_or("DURATION: expected the milliseconds of a request")?;
            block.push_request(Time::from_micros(time), number, request.domain);
            if request.is_delayed {
                block.delay();
            }
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
        AccessLog::of_templates("shop".to_owned(), descriptors, format)
    }

    /// The descriptors of the request of a line; none if Envoy sends no request.
    fn sent(log: &AccessLog, line: &str) -> Result<Vec<String>, String> {
        let mut block = Block::new(0, 1, line.len());
        log.read(&mut block, line, 0)?;
        if block.times().next().is_none() {
            assert_eq!(block.aside.without_descriptors, 1);
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
