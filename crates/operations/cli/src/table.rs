//! The tables that commands print, and that the page of a replay shows.

use std::fmt::Write as _;

use crate::terminal::{self, BOLD, DIM, columns, cut, paint};
use text::printable;

/// A table: numbers are aligned to the right. In a terminal the widest column of text is cut to the width.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

struct Column {
    name: &'static str,
    is_number: bool,
}

/// The minimum width of a column of text that is cut.
const MIN_WIDTH: usize = 8;

impl Table {
    /// A table with these columns; `#` before a name marks a column of numbers and is not shown.
    pub(super) fn new(names: &[&'static str]) -> Self {
        let columns = names.iter().map(|name| match name.strip_prefix('#') {
            Some(name) => Column { name, is_number: true },
            None => Column { name, is_number: false },
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    /// Adds a row. Control characters are escaped.
    pub(super) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into().iter().map(|cell| printable(cell).into_owned()).collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table for standard output: at most as wide as the terminal, or `COLUMNS`.
    pub(super) fn print(&self) -> String {
        self.fit(&self.rows, terminal::width())
    }

    /// The first rows for standard output, and how many more there are.
    pub(super) fn print_first(&self, most: usize) -> String {
        let shown = self.rows.get(..most).unwrap_or(&self.rows);
        let mut text = self.fit(shown, terminal::width());
        let more = self.rows.len() - shown.len();
        if more > 0 {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "{}", paint(DIM, &format!("and {more} more, see --json")));
        }
        text
    }

    /// The table as HTML.
    pub(super) fn html(&self) -> String {
        let class = |column: &Column| if column.is_number { " class=\"n\"" } else { "" };
        let mut html = "<table><tr>".to_owned();
        for column in &self.columns {
            let _ = write!(html, "<th{}>{}</th>", class(column), column.name);
        }
        html += "</tr>\n";
        for row in &self.rows {
            html += "<tr>";
            for (cell, column) in row.iter().zip(&self.columns) {
                let _ = write!(html, "<td{}>{}</td>", class(column), html_escaped(cell));
            }
            html += "</tr>\n";
        }
        html + "</table>"
    }

    fn fit(&self, rows: &[Vec<String>], width: usize) -> String {
        let widths = self.widths(rows, width);
        let header: Vec<String> = self.columns.iter().map(|column| column.name.to_uppercase()).collect();
        // Columns of numbers are never cut, so a very narrow line ends early.
        let line = |cells: &[String]| cut(&self.line(cells, &widths), width);
        let mut text = format!("{}\n", paint(BOLD, &line(&header)));
        for row in rows {
            text.push_str(&line(row));
            text.push('\n');
        }
        text
    }

    fn widths(&self, rows: &[Vec<String>], most: usize) -> Vec<usize> {
        let all = self.columns.iter().enumerate();
        let mut widths: Vec<usize> = all
            .map(|(at, column)| {
                let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| columns(cell));
                cells.chain([column.name.len()]).max().unwrap_or_default()
            })
            .collect();
        loop {
            let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            let texts = widths.iter_mut().zip(&self.columns).filter(|(_, column)| !column.is_number);
            match texts.map(|(width, _)| width).max() {
                Some(width) if total > most && *width > MIN_WIDTH => *width -= 1,
                _ => return widths,
            }
        }
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let cells = cells.iter().zip(widths).zip(&self.columns).map(|((cell, width), column)| {
            let cell = cut(cell, *width);
            let padding = " ".repeat(width.saturating_sub(columns(&cell)));
            if column.is_number { padding + &cell } else { cell + &padding }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

/// A text of a caller in HTML.
pub(super) fn html_escaped(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

    #[test]
    fn a_narrow_table_cuts_its_widest_text() {
        let mut table = Table::new(&["rule", "descriptor", "#refused"]);
        table.row(["shop.user".into(), "user=somebody@example.com".into(), "12".into()]);
        table.row(["shop.user".into(), "user=é".into(), "1,200".into()]);
        let expected = "RULE       DESCRIPTOR                 REFUSED\n\
            shop.user  user=somebody@example.com       12\n\
            shop.user  user=é                       1,200\n";
        assert_eq!(plain(&table.fit(&table.rows, 200)), expected);
        for width in 0..60 {
            let text = plain(&table.fit(&table.rows, width));
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width, "{width}: {text}");
        }
        assert!(
            plain(&table.fit(&table.rows, 36)).contains("user=somebody@e…"),
            "{}",
            plain(&table.fit(&table.rows, 36))
        );
    }
}
