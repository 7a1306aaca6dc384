//! The table of variables as the README shows it.

use std::fmt::Write as _;

use super::vars::ALL;

/// The table as Markdown: a heading and a table for each group.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::new();
    let mut group = "";
    for var in ALL {
        if var.group != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            group = var.group;
            // Writing to a String cannot fail.
            let _ = write!(text, "{gap}### {group}\n\n| Variable | Default | Meaning |\n|---|---|---|\n");
        }
        let default = if var.default.is_empty() { String::new() } else { format!("`{}`", var.default) };
        let _ = writeln!(text, "| `{}` | {default} | {} |", var.name, var.doc);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_variable_stands_in_the_table_twice() {
        let names: BTreeSet<_> = ALL.iter().map(|var| var.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn every_variable_is_one_row_of_three_cells() {
        let text = markdown();
        for var in ALL {
            let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", var.name)));
            assert_eq!(row.map(|row| row.matches('|').count()), Some(4), "{}", var.name);
        }
    }

    #[test]
    fn a_group_has_one_heading() {
        let text = markdown();
        for var in ALL {
            let heading = format!("### {}", var.group);
            assert_eq!(text.lines().filter(|line| **line == heading).count(), 1, "{heading}");
        }
    }

    #[test]
    fn sentences_end() {
        for var in ALL {
            assert!(var.doc.ends_with('.'), "{}: {}", var.name, var.doc);
            assert!(!var.doc.contains("  "), "{}: {}", var.name, var.doc);
        }
    }
}
