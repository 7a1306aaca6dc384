//! `tollgate settings`: the table of variables, or their values in this environment.

use std::fmt::Write as _;

use clap::Args;

use super::{
    serve::Environment,
    terminal::{self, BOLD, DIM, PLACE, Verdict, paint},
};
use settings::{self, Settings, Source, markdown};

#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub(crate) struct SettingsArgs {
    /// Print the value of every variable in this environment instead; passwords are masked.
    #[arg(long)]
    pub(crate) effective: bool,
}

/// Prints the table. With `--effective`, the verdict is whether the settings are valid.
pub(super) fn run(args: &SettingsArgs, environment: &Environment) -> Verdict {
    if !args.effective {
        terminal::print_data(&markdown());
        return Verdict::Yes;
    }
    let settings = environment.settings();
    terminal::print(&effective(environment, settings.as_ref().ok().map(|(settings, _)| settings)));
    match settings {
        Ok((_, warnings)) => {
            for warning in warnings {
                terminal::print_warning(&warning);
            }
            Verdict::Yes
        }
        Err(error) => {
            terminal::print_error(error);
            Verdict::No
        }
    }
}

/// A line `NAME=value` for each variable. Variables that are set are marked with their default.
fn effective(environment: &Environment, settings: Option<&Settings>) -> String {
    let rows = settings::effective(&|name| environment.variables.get(name).cloned(), settings);
    let mut text = String::new();
    let mut group = "";
    for row in rows {
        let var = row.var;
        if var.group != group {
            let gap = if group.is_empty() { "" } else { "\n" };
            group = var.group;
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(text, "{gap}{}", paint(PLACE, &format!("# {group}")));
        }
        let line = format!("{}={}", var.name, quoted(&row.value));
        let default = if var.default.is_empty() { "unset" } else { var.default };
        let _ = match row.source {
            Source::Default => writeln!(text, "{line}"),
            Source::Derived => writeln!(text, "{line}{}", paint(DIM, "  # derived")),
            Source::Environment => {
                let comment = paint(DIM, &format!("  # set; default: {default}"));
                writeln!(text, "{}{comment}", paint(BOLD, &line))
            }
        };
    }
    text
}

/// The value, quoted for a shell.
fn quoted(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,=*@%+[]".contains(&byte) || byte > 127;
    if value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}
