//! Logs: one line per event, as text or JSON, to standard error.
//!
//! `tollgate serve` installs this once, first. A thread writes the lines; if standard error is closed, they are lost.
//! Nothing is logged per request above debug.

mod output;
mod writer;

use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::{Event, Level, Subscriber, field::Field, level_filters::LevelFilter, subscriber};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    layer::{Context, SubscriberExt as _},
};

use clock::write_utc;
use faults::mutex::lock;
use metrics::count_dropped_log_lines;

use output::Output;
use writer::Writer;

/// The time for the last lines, if standard error is not read.
const LAST_FLUSH: Duration = Duration::from_millis(250);

static WRITER: OnceLock<Arc<Writer>> = OnceLock::new();

/// Writes the pending lines when dropped.
pub struct Installed(());

impl Drop for Installed {
    fn drop(&mut self) {
        flush();
    }
}

/// Waits until the pending lines are written, or for a moment if standard error is not read. Before the process ends.
pub fn flush() {
    WRITER.get().into_iter().for_each(|writer| writer.flush(LAST_FLUSH));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Logs to standard error from now on. Only the first call of a process has an effect.
pub fn install(level: Option<Level>, format: LogFormat) -> Installed {
    let mut output = Output::stderr();
    if let Ok(writer) = Writer::start(move |lines| output.write(lines)) {
        let _ = WRITER.set(writer);
    }
    // Without a thread, as where the system allows no more of them, lines are written in place.
    let in_place = Mutex::new(Output::stderr());
    let write = move |line: &str| match WRITER.get() {
        Some(lines) => lines.push(line),
        None => count_dropped_log_lines(lock(&in_place).write(line)),
    };
    // Fails if there is a subscriber already, which stays.
    let _ = subscriber::set_global_default(subscriber(level, format, write));
    Installed(())
}

fn subscriber(
    level: Option<Level>,
    format: LogFormat,
    write: impl Fn(&str) + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync {
    Registry::default().with(targets(level.into())).with(Lines { format, write })
}

/// The levels by target: libraries log only warnings and errors.
fn targets(level: LevelFilter) -> Targets {
    let libraries = ["h2", "hyper", "hyper_util", "mio", "notify", "tonic", "tower"];
    let of_libraries = level.min(LevelFilter::WARN);
    Targets::new().with_default(level).with_targets(libraries.map(|name| (name, of_libraries)))
}

struct Lines<W> {
    format: LogFormat,
    write: W,
}

impl<S: Subscriber, W: Fn(&str) + Send + Sync + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let time = Timestamp(SystemTime::now());
        let level = level_name(*event.metadata().level());
        (self.write)(&match self.format {
            LogFormat::Text => text_line(time, level, &fields),
            LogFormat::Json => json_line(time, level, fields),
        });
    }
}

/// The names of logrus, which log pipelines for the Go service expect.
fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The message and the other fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, serde_json::Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        self.others.push((field.name(), value.into()));
    }
}

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
}

/// `2026-07-01T12:00:00.000000000Z warning the message key=value other="a b"`
fn text_line(time: Timestamp, level: &str, fields: &Fields) -> String {
    let mut line = format!("{time} {level:<7} ");
    // A message may quote control characters.
    line.push_str(&text::printable(&fields.message));
    for (name, value) in &fields.others {
        // Writing to a String cannot fail.
        let _ = match value.as_str() {
            Some(text) if is_plain(text) => write!(line, " {name}={text}"),
            Some(text) => write!(line, " {name}={text:?}"),
            None => write!(line, " {name}={value}"),
        };
    }
    line.push('\n');
    line
}

/// True if a value needs no quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text
            .chars()
            .any(|c| c.is_whitespace() || text::is_unprintable(c) || matches!(c, '"' | '=' | '\\'))
}

/// A JSON object with the Go service's names.
fn json_line(time: Timestamp, level: &str, fields: Fields) -> String {
    let mut object = serde_json::Map::new();
    for (name, value) in fields.others {
        // As in logrus, a field with a reserved name is renamed.
        let taken = ["@timestamp", "@message", "level"].contains(&name);
        object.insert(if taken { format!("fields.{name}") } else { name.to_owned() }, value);
    }
    object.insert("@timestamp".to_owned(), time.to_string().into());
    object.insert("@message".to_owned(), fields.message.into());
    object.insert("level".to_owned(), level.into());
    // serde_json escapes control characters alone.
    text::printable_json(&serde_json::Value::Object(object).to_string()) + "\n"
}

/// The time of a log line, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Timestamp(SystemTime);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A clock before 1970 reads as 1970: a wrong time is better than no line.
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        write_utc(f, since.as_secs(), format_args!("{:09}", since.subsec_nanos()))
    }
}

#[cfg(test)]
mod tests {
    use std::{io, mem, time::Duration};

    use tracing::{debug, error, info, trace, warn};

    use super::*;

    fn lines(level: LevelFilter, format: LogFormat, events: impl FnOnce()) -> Vec<String> {
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&written);
        let write = move |line: &str| sink.lock().unwrap().push(line.to_owned());
        subscriber::with_default(subscriber(level.into_level(), format, write), events);
        // Another test may look at the subscriber, which has the other one.
        mem::take(&mut *written.lock().unwrap())
    }

    #[test]
    fn a_text_line_has_time_level_message_and_fields() {
        let lines = lines(LevelFilter::INFO, LogFormat::Text, || {
            warn!(port = 8081, host = "a b", file = %"x.yaml", "listening on {}", "it");
        });
        let (time, rest) = lines[0].split_once(' ').unwrap();
        assert_eq!(
            (time.len(), time.ends_with('Z')),
            ("2026-07-01T12:00:00.123456789Z".len(), true),
            "{time}"
        );
        assert_eq!(rest, "warning listening on it port=8081 host=\"a b\" file=x.yaml\n");
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn a_text_line_stays_one_line() {
        let lines = lines(LevelFilter::INFO, LogFormat::Text, || {
            info!(value = "x\ny", empty = "", eq = "a=b", "bad\nkey\u{1b}[31m \u{fc}");
        });
        let rest = lines[0].split_once(' ').unwrap().1;
        let expected = r#"info    bad\nkey\u{1b}[31m ü value="x\ny" empty="" eq="a=b""#;
        assert_eq!(rest, format!("{expected}\n"));
    }

    #[test]
    fn no_line_has_characters_that_change_the_direction_of_others() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let value = "a\u{202e}b\u{2066}\u{e0041}\u{feff}\u{7f}\u{9b}";
            let lines = lines(LevelFilter::INFO, format, || warn!(value, "{value}"));
            assert!(!lines[0].trim_end().contains(text::is_unprintable), "{:?}", lines[0]);
            if format == LogFormat::Json {
                let object: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
                assert_eq!((&object["value"], &object["@message"]), (&value.into(), &value.into()));
            }
        }
    }

    #[test]
    fn a_json_line_has_the_names_of_the_go_service() {
        let lines = lines(LevelFilter::TRACE, LogFormat::Json, || {
            let failure = io::Error::other("dis\"k\n");
            error!(
                error = &failure as &dyn std::error::Error,
                count = 3_u64,
                share = 0.5,
                on = true,
                below = -1,
                "no rules"
            );
        });
        assert!(lines[0].ends_with("}\n") && lines[0].matches('\n').count() == 1, "{}", lines[0]);
        let mut object: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        let time = object.as_object_mut().unwrap().remove("@timestamp").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        let expected = serde_json::json!({
            "@message": "no rules",
            "level": "error",
            "error": "dis\"k\n",
            "count": 3,
            "share": 0.5,
            "on": true,
            "below": -1,
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn a_field_does_not_replace_the_level() {
        let lines = lines(LevelFilter::INFO, LogFormat::Json, || info!(level = "mine", "x"));
        let object: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&object["level"], &object["fields.level"]), (&"info".into(), &"mine".into()));
    }

    #[test]
    fn each_level_includes_the_more_severe_ones() {
        for (level, names) in [
            (LevelFilter::OFF, &[][..]),
            (LevelFilter::ERROR, &["error"]),
            (LevelFilter::WARN, &["error", "warning"]),
            (LevelFilter::DEBUG, &["error", "warning", "info", "debug"]),
            (LevelFilter::TRACE, &["error", "warning", "info", "debug", "trace"]),
        ] {
            let lines = lines(level, LogFormat::Text, || {
                error!("x");
                warn!("x");
                info!("x");
                debug!("x");
                trace!("x");
            });
            let seen: Vec<_> = lines.iter().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
            assert_eq!(seen, names);
        }
    }

    #[test]
    fn logs_warnings_and_errors_of_libraries() {
        let logged = |level| {
            lines(level, LogFormat::Text, || {
                debug!(target: "h2::codec", "frame");
                info!(target: "hyper", "connection");
                warn!(target: "tower::buffer", "full");
            })
        };
        assert_eq!(logged(LevelFilter::TRACE).len(), 1);
        assert_eq!(logged(LevelFilter::ERROR).len(), 0);
    }

    fn after(seconds: u64, nanos: u32) -> String {
        Timestamp(UNIX_EPOCH + Duration::new(seconds, nanos)).to_string()
    }

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        assert_eq!(after(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(after(951_782_399, 999_999_999), "2000-02-28T23:59:59.999999999Z");
        assert_eq!(after(951_782_400, 1), "2000-02-29T00:00:00.000000001Z");
        assert_eq!(after(1_234_567_890, 0), "2009-02-13T23:31:30.000000000Z");
        assert_eq!(after(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
        assert_eq!(after(253_402_300_799, 0), "9999-12-31T23:59:59.000000000Z");
    }

    #[test]
    fn a_clock_before_1970_reads_as_1970() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp(early).to_string(), after(0, 0));
    }
}
