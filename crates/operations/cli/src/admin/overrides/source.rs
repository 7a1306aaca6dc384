//! Reads a file of overrides one by one, with their lines: CSV with a header, or JSON lines.

use std::io::{BufRead, Read};

use clock::Time;
use overrides::{
    Input,
    table::{Columns, of_json_line},
};

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The overrides of a file, each with its line.
pub(crate) enum Source<R> {
    Lines { text: R, number: u64, now: Time },
    Csv { reader: Box<csv::Reader<R>>, columns: Columns, is_crlf: bool, now: Time },
}

impl<R: BufRead + Read> Source<R> {
    pub(crate) fn new(mut text: R, is_csv: bool, now: Time) -> Result<Self, String> {
        let start = text.fill_buf().map_err(|error| error.to_string())?;
        let mark = if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let first = start.iter().position(|byte| *byte == b'\n').and_then(|end| start.get(..end));
        let is_crlf = first.is_some_and(|line| line.ends_with(b"\r"));
        text.consume(mark);
        if !is_csv {
            return Ok(Self::Lines { text, number: 0, now });
        }
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text);
        let header = reader.headers().map_err(|error| csv_error(&error, false))?;
        let columns = Columns::read(header.iter()).map_err(|error| format!("line 1: {error}"))?;
        Ok(Self::Csv { reader: Box::new(reader), columns, is_crlf, now })
    }

    /// The next override or its error; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Result<Input, String>> {
        match self {
            Self::Lines { text, number, now } => loop {
                let mut line = String::new();
                *number += 1;
                match text.read_line(&mut line) {
                    Ok(0) => return None,
                    Ok(_) if line.trim().is_empty() => {}
                    Ok(_) => {
                        let read = of_json_line(line.trim_end(), *now);
                        return Some(read.map_err(|error| format!("line {number}: {error}")));
                    }
                    Err(error) => return Some(Err(format!("line {number}: {error}"))),
                }
            },
            Self::Csv { reader, columns, is_crlf, now } => {
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(false) => None,
                    Ok(true) => {
                        let line = line_of(record.position(), *is_crlf);
                        let read = columns.row(&record.iter().collect::<Vec<_>>(), *now);
                        Some(read.map_err(|error| format!("line {line}: {error}")))
                    }
                    Err(error) => Some(Err(csv_error(&error, *is_crlf))),
                }
            }
        }
    }
}

/// The line of a row. The reader counts the `\n` of a `\r\n` as the start of the next row.
fn line_of(position: Option<&csv::Position>, is_crlf: bool) -> u64 {
    let line = position.map_or(0, csv::Position::line);
    line + u64::from(is_crlf && line > 0 && position.is_some_and(|at| at.byte() > 0))
}

fn csv_error(error: &csv::Error, is_crlf: bool) -> String {
    let line = line_of(error.position(), is_crlf);
    match error.kind() {
        csv::ErrorKind::Utf8 { .. } => format!("line {line}: the text is not UTF-8; save the file as UTF-8"),
        _ => error.to_string(),
    }
}
