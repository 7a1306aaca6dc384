//! The command line: what a user may type, and the commands that are answered here.
//!
//! [`parse`] makes a [`Command`] of the arguments; `main` matches on it. Each command has a file of its
//! own; what is only printed is done here.

pub mod check;
pub mod explain;
pub mod request;
pub mod serve;

mod rules_files;

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use self::{explain::ExplainArgs, request::RequestArgs, rules_files::ReadingArgs};

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Serve, as the environment says.
    Serve {
        /// Arguments that were given to `ratelimit` and mean nothing; worth a warning.
        ignored: Vec<String>,
    },
    /// Say what is wrong with rules files.
    Check(CheckArgs),
    /// Say which rule a request would meet, and why.
    Explain(ExplainArgs),
    /// Ask a running server.
    Request(RequestArgs),
    /// Print the table of settings.
    Settings,
    /// Print a shell's completions.
    Completions(Shell),
}

/// What `tollgate check` is told.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct CheckArgs {
    /// The directory with the rules, or one file; without it, where the server would look.
    pub dir: Option<PathBuf>,
    /// How they are read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Warn also of what the Go service would refuse.
    #[arg(long)]
    pub portable: bool,
}

/// Answers Envoy's question whether a request may pass.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = "Without a command it serves. The server is set up by environment variables: \
        `tollgate settings` lists them."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Typed>,
}

/// The commands as they are typed.
#[derive(Subcommand)]
enum Typed {
    /// Serve rate limits (what is done without a command).
    Serve,
    /// Say what is wrong with rules files, and where.
    ///
    /// Exits with 0 when the rules can be served, though there may be warnings, and with 1 when not.
    Check(CheckArgs),
    /// Say which rule a request would meet and why, which near ones it would not, and what it would be told.
    ///
    /// Exits with 0 when a rule is met, with 1 when none is, and with 2 when the rules or the settings
    /// cannot be served. What a refusal says depends on the settings, which are those of the environment.
    #[command(override_usage = "tollgate explain [OPTIONS] [RULES]... 'DOMAIN KEY=VALUE,...'")]
    Explain(ExplainArgs),
    /// Ask a running server whether it would let a request through.
    ///
    /// Exits with 0 when the request is allowed, with 1 when it is over a limit, and with 2 when there is
    /// no answer.
    Request(RequestArgs),
    /// Print the table of environment variables, as Markdown.
    Settings,
    /// Print a script that completes the commands in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The command that these arguments give, the program's own name among them as the first.
///
/// Prints help, the version, or what is wrong with the arguments, and then ends the process.
#[must_use]
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Command {
    try_parse(args).unwrap_or_else(|error| error.exit())
}

fn try_parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    if called_as_ratelimit(&args) {
        // Manifests for the Go service pass arguments that it never looked at.
        let ignored = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        return Ok(Command::Serve { ignored });
    }
    Ok(match Cli::try_parse_from(args)?.command {
        None | Some(Typed::Serve) => Command::Serve { ignored: Vec::new() },
        Some(Typed::Check(args)) => Command::Check(args),
        Some(Typed::Explain(args)) => Command::Explain(args),
        Some(Typed::Request(args)) => Command::Request(args),
        Some(Typed::Settings) => Command::Settings,
        Some(Typed::Completions { shell }) => Command::Completions(shell),
    })
}

/// True when the program goes by the name that the Go service has in its image, `/bin/ratelimit`.
fn called_as_ratelimit(args: &[OsString]) -> bool {
    args.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == "ratelimit")
}

/// The script that completes the commands in `shell`.
#[must_use]
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Prints a text to standard output.
pub fn print(text: &str) {
    // Whoever reads it may have seen enough and left, as in `tollgate settings | head`.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    fn typed(line: &str) -> Result<Command, clap::Error> {
        try_parse(line.split_whitespace().map(OsString::from))
    }

    fn serving(ignored: &[&str]) -> Command {
        Command::Serve { ignored: ignored.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn it_serves_when_nothing_else_is_said() {
        for line in ["tollgate", "tollgate serve", "/usr/bin/tollgate serve", ""] {
            assert_eq!(typed(line).unwrap(), serving(&[]), "{line}");
        }
    }

    #[test]
    fn called_as_ratelimit_it_serves_whatever_the_arguments() {
        for (line, ignored) in [
            ("ratelimit", &[][..]),
            ("/bin/ratelimit", &[]),
            (
                "/bin/ratelimit -config /data --quotaRateLimitServiceAddr=x",
                &["-config", "/data", "--quotaRateLimitServiceAddr=x"],
            ),
            ("./ratelimit --help", &["--help"]),
            ("ratelimit check", &["check"]),
        ] {
            assert_eq!(typed(line).unwrap(), serving(ignored), "{line}");
        }
        assert!(typed("ratelimiter --nonsense").is_err());
    }

    #[test]
    fn check_takes_a_directory_and_four_flags() {
        let bare = CheckArgs { dir: None, reading: ReadingArgs::default(), portable: false };
        assert_eq!(typed("tollgate check").unwrap(), Command::Check(bare));
        let full = CheckArgs {
            dir: Some("rules".into()),
            reading: ReadingArgs { merge_domains: true, ignore_dot_files: true, memcached: true },
            portable: true,
        };
        assert_eq!(
            typed("tollgate check rules --merge-domains --ignore-dot-files --memcached --portable").unwrap(),
            Command::Check(full)
        );
    }

    #[test]
    fn other_arguments_are_refused() {
        for line in [
            "tollgate nonsense",
            "tollgate -config /data",
            "tollgate serve now",
            "tollgate check a b",
            "tollgate explain",
            "tollgate request",
            "tollgate request d",
            "tollgate completions",
            "tollgate completions dos",
        ] {
            let error = typed(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for line in ["tollgate --help", "tollgate --version", "tollgate help request", "tollgate check -h"] {
            assert_eq!(typed(line).unwrap_err().exit_code(), 0, "{line}");
        }
        let version = typed("tollgate --version").unwrap_err().to_string();
        assert_eq!(version, format!("tollgate {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn every_shell_has_completions_for_every_command() {
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            for command in ["serve", "check", "explain", "request", "settings", "completions"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }
}
