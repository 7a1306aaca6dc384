//! A file of overrides, read one by one with their lines: CSV with a header, or JSON lines.

use std::io::{BufRead, Read};

use crate::{
    clock::Time,
    overrides::{
        Override,
        table::{Columns, of_json_line},
    },
};

/// The overrides of a file, each with its line.
pub(in crate::cli) enum Source<R> {
    Lines { text: R, number: u64, now: Time },
    Csv { reader: Box<csv::Reader<R>>, columns: Columns, now: Time },
}

impl<R: BufRead + Read> Source<R> {
    /// # Errors
    /// When the header of a CSV file is wrong.
    pub(in crate::cli) fn new(text: R, is_csv: bool, now: Time) -> Result<Self, String> {
        if !is_csv {
            return Ok(Self::Lines { text, number: 0, now });
        }
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text);
        let header = reader.headers().map_err(|error| format!("line 1: {error}"))?;
        let columns = Columns::read(header.iter()).map_err(|error| format!("line 1: {error}"))?;
        Ok(Self::Csv { reader: Box::new(reader), columns, now })
    }

    /// The next override, or what is wrong with it; `None` at the end.
    pub(in crate::cli) fn next(&mut self) -> Option<Result<Override, String>> {
        match self {
            Self::Lines { text, number, now } => loop {
                let mut line = String::new();
                *number = number.saturating_add(1);
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
            Self::Csv { reader, columns, now } => {
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(false) => None,
                    Ok(true) => {
                        let line = record.position().map_or(0, csv::Position::line);
                        let read = columns.row(&record.iter().collect::<Vec<_>>(), *now);
                        Some(read.map_err(|error| format!("line {line}: {error}")))
                    }
                    Err(error) => Some(Err(error.to_string())),
                }
            }
        }
    }
}
