//! The command line: the arguments of each command, and which command they select.
//!
//! `main` calls [`run`]. Each command has its file, whose `run` returns a verdict or a failure; `endpoint` is the
//! connection to a running service.

mod admin;
mod check;
mod endpoint;
mod explain;
mod format;
mod github;
mod health;
mod progress;
mod replay;
mod request;
mod rules_files;
mod serve;
mod settings;
mod table;
mod terminal;

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

pub use self::serve::{Environment, Serve};
use self::{
    admin::{
        changes, counter, counter::CounterCommand, domain, domain::DomainCommand, hold, hold::HoldCommand,
        overrides, overrides::OverrideCommand, refusals, status, top, why,
    },
    check::CheckArgs,
    explain::ExplainArgs,
    health::HealthArgs,
    replay::ReplayArgs,
    request::RequestArgs,
    settings::SettingsArgs,
    terminal::{Failure, Verdict},
};

#[derive(Subcommand, Clone, PartialEq, Debug)]
enum Command {
    /// Serve rate limits; the default without a command.
    Serve {
        /// Arguments of `ratelimit`, which are ignored.
        #[arg(skip)]
        ignored: Vec<String>,
    },
    /// Check rules files and report every error and warning.
    ///
    /// Exits with 0 when the rules are valid, 1 when they are not, and 2 when they could not be read.
    Check(CheckArgs),
    /// Show which rule a request would match, and why; no server is needed.
    ///
    /// Exits with 0 when every descriptor matches a rule, 1 when one does not, and 2 when the rules, the
    /// settings or the arguments are invalid. The over-limit response depends on the settings, which are
    /// read from the environment.
    #[command(
        override_usage = "tollgate explain [OPTIONS] DOMAIN KEY=VALUE[,KEY=VALUE]...",
        after_help = "Example: tollgate explain --rules config shop path=/cart,user=ann"
    )]
    Explain(ExplainArgs),
    /// Show what rules would have done with the requests of logs; no server is needed.
    ///
    /// Exits with 0, with 1 when more requests are newly refused than --fail-above allows, and with 2 when a log, the
    /// rules, the settings or the arguments cannot be read. The settings are those of the service, read from the
    /// environment.
    #[command(
        after_help = "Example: tollgate replay requests.jsonl.gz --rules new --against config --fail-above 0.1%"
    )]
    Replay(ReplayArgs),
    /// Send a request to a running service and print its response.
    ///
    /// Exits with 0 when the request is allowed, 1 when it is over a limit, and 2 when there is no response.
    #[command(after_help = "Example: tollgate request --peek shop path=/cart,user=ann")]
    Request(RequestArgs),
    /// Check whether the service on this machine is healthy.
    ///
    /// For exec probes. Exits with 0 when it is healthy, 1 when it is not, and 2 when there is no response.
    Health(HealthArgs),
    /// Show the state of a running service, through its admin API.
    ///
    /// Exits with 0 when it has its latest rules and its store, 1 when not, and 2 when there is no response.
    Status(status::StatusArgs),
    /// Show the keys with the most refused or allowed hits, or descriptors that meet no rule, through the admin API.
    ///
    /// Exits with 0 when there are any, 1 when there are none, and 2 when there is no response.
    #[command(after_help = "Example: tollgate top --domain shop --by allowed")]
    Top(top::TopArgs),
    /// Show the refused keys with their reasons, through the admin API.
    ///
    /// Exits with 0 when there are any, 1 when there are none, and 2 when there is no response.
    #[command(after_help = "Example: tollgate refusals --follow --domain shop --descriptor user=ann")]
    Refusals(refusals::RefusalsArgs),
    /// Show every recorded request with a value and what refused it, or exempt it from all of that, through the admin API.
    ///
    /// Exits with 0 when there are any, 1 when there are none, and 2 when there is no response.
    #[command(after_help = "Example: tollgate why 203.0.113.7 --exempt --for 2h --reason 'partner launch'")]
    Why(why::WhyArgs),
    /// Show what changed, when, on which replica, by whom and why, through the admin API.
    ///
    /// Exits with 0 when there are changes, 1 when there are none, and 2 when there is no response.
    Changes(changes::ChangesArgs),
    /// Show or reset the counters of a descriptor in a running service, through its admin API.
    #[command(subcommand)]
    Counter(CounterCommand),
    /// List, settle or end the holds of a descriptor's limits in a running service, through its admin API.
    #[command(subcommand)]
    Hold(HoldCommand),
    /// Set, list, remove or import overrides of the rules in a running service, through its admin API.
    #[command(subcommand)]
    Override(OverrideCommand),
    /// Allow or shadow all requests of a domain, or change its failure policy, through the admin API.
    #[command(subcommand)]
    Domain(DomainCommand),
    /// Print the table of environment variables, or their values.
    ///
    /// The table is Markdown. With --effective, exits with 0 when the values are valid and with 1 when not.
    Settings(SettingsArgs),
    /// Print the JSON Schema of rules files, for editors.
    Schema,
    /// Print a shell completion script.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the man page, or write one for each command into a directory.
    Man {
        /// The directory; created if it is missing.
        dir: Option<PathBuf>,
    },
}

/// A rate limit service for Envoy.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = "Without a command, tollgate serves. Environment variables configure the service: see \
        `tollgate settings`.\n\nExit codes: 0 yes, 1 no, 2 no verdict (wrong arguments, invalid settings, no \
        response)."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// Runs the command that the arguments select; the first argument is the name of the program.
///
/// Or prints help, the version, or an error in the arguments.
pub fn run(args: impl IntoIterator<Item = OsString>, environment: &Environment, serve: Serve) -> ExitCode {
    let verdict = match parse(args) {
        Ok(command) => run_command(command, environment, serve),
        // Help and the version are errors without a message.
        Err(error) if error.use_stderr() => {
            terminal::print_to_stderr(&error.render().ansi().to_string());
            Ok(Verdict::Unknown)
        }
        Err(help) => {
            terminal::print(&help.render().ansi().to_string());
            Ok(Verdict::Yes)
        }
    };
    let verdict = verdict.unwrap_or_else(|failure| {
        terminal::print_error(failure);
        Verdict::Unknown
    });
    if let Some(error) = terminal::output_error() {
        terminal::print_error(format!("cannot write to standard output: {error}"));
        return ExitCode::from(Verdict::Unknown as u8);
    }
    ExitCode::from(verdict as u8)
}

fn run_command(command: Command, environment: &Environment, serve: Serve) -> Result<Verdict, Failure> {
    match command {
        Command::Serve { ignored } => Ok(serve::run(environment, &ignored, serve)),
        Command::Check(args) => check::run(&args, environment),
        Command::Explain(args) => explain::run(&args, environment),
        Command::Replay(args) => replay::run(&args, environment),
        Command::Request(args) => request::run(&args, environment),
        Command::Health(args) => health::run(&args, environment),
        Command::Status(args) => status::run(&args, environment),
        Command::Top(args) => top::run(&args, environment),
        Command::Refusals(args) => refusals::run(&args, environment),
        Command::Why(args) => why::run(&args, environment),
        Command::Changes(args) => changes::run(&args, environment),
        Command::Counter(command) => counter::run(&command, environment),
        Command::Hold(command) => hold::run(&command, environment),
        Command::Override(command) => overrides::run(&command, environment),
        Command::Domain(command) => domain::run(&command, environment),
        Command::Settings(args) => Ok(settings::run(&args, environment)),
        Command::Schema => {
            terminal::print_data(&format!("{:#}\n", rules::schema()));
            Ok(Verdict::Yes)
        }
        Command::Completions { shell } => {
            terminal::print_data(&completions(shell));
            Ok(Verdict::Yes)
        }
        Command::Man { dir } => print_man_pages(dir.as_deref()),
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    let is_command = |arg: &OsString| Cli::command().get_subcommands().any(|known| known.get_name() == arg);
    if called_as_ratelimit(&args) && !args.get(1).is_some_and(is_command) {
        // Manifests of the Go service pass arguments that it ignores.
        let ignored = args.iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        return Ok(Command::Serve { ignored });
    }
    Ok(Cli::try_parse_from(args)?.command.unwrap_or(Command::Serve { ignored: Vec::new() }))
}

/// True when the program is called by the Go service's name, `/bin/ratelimit`.
fn called_as_ratelimit(args: &[OsString]) -> bool {
    args.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == "ratelimit")
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// `tollgate(1)`, which names only commands that have a page of their own.
fn man() -> clap_mangen::Man {
    clap_mangen::Man::new(Cli::command().disable_help_subcommand(true))
}

/// Prints `tollgate(1)`, or writes the man pages of all commands into `dir`, which is created if it is missing.
fn print_man_pages(dir: Option<&Path>) -> Result<Verdict, Failure> {
    let mut page = Vec::new();
    let (written, place) = match dir {
        Some(dir) => {
            let pages = || clap_mangen::generate_to(Cli::command(), dir);
            (fs::create_dir_all(dir).and_then(|()| pages()), dir.display().to_string())
        }
        None => (man().render(&mut page), "tollgate(1)".to_owned()),
    };
    written.map_err(|error| format!("cannot write {place}: {error}"))?;
    terminal::print_data(&String::from_utf8_lossy(&page));
    Ok(Verdict::Yes)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::{
        check::{Format, FormatArgs},
        rules_files::ReadingArgs,
        *,
    };

    fn typed(line: &str) -> Result<Command, clap::Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn serving(ignored: &[&str]) -> Command {
        Command::Serve { ignored: ignored.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serves_without_a_command() {
        for line in ["tollgate", "tollgate serve", "/usr/bin/tollgate serve", ""] {
            assert_eq!(typed(line).unwrap(), serving(&[]), "{line}");
        }
    }

    #[test]
    fn ignores_arguments_other_than_commands_when_called_as_ratelimit() {
        for (line, ignored) in [
            ("ratelimit", &[][..]),
            ("/bin/ratelimit", &[]),
            ("/bin/ratelimit serve", &[]),
            (
                "/bin/ratelimit -config /data --quotaRateLimitServiceAddr=x",
                &["-config", "/data", "--quotaRateLimitServiceAddr=x"],
            ),
            ("./ratelimit --help", &["--help"]),
            ("ratelimit chekc /rules", &["chekc", "/rules"]),
            ("ratelimit -v check", &["-v", "check"]),
        ] {
            assert_eq!(typed(line).unwrap(), serving(ignored), "{line}");
        }
        assert!(typed("ratelimiter --nonsense").is_err());
        assert!(typed("ratelimit check --nonsense").is_err());
        assert_eq!(typed("/bin/ratelimit check /rules").unwrap(), typed("tollgate check /rules").unwrap());
        assert!(matches!(typed("/bin/ratelimit health").unwrap(), Command::Health(_)));
    }

    #[test]
    fn check_takes_paths_and_flags() {
        let Command::Check(bare) = typed("tollgate check").unwrap() else { panic!() };
        assert_eq!(
            (bare.paths.len(), bare.reading, bare.format.chosen()),
            (0, ReadingArgs::default(), Format::Text)
        );
        let line = "tollgate check rules a.yaml --merge-domains --ignore-dot-files --memcached --before old --portable \
            --deny-warnings --format github --admin unix:/run/a --token-file t";
        let full = CheckArgs {
            paths: vec!["rules".into(), "a.yaml".into()],
            reading: ReadingArgs { merge_domains: true, ignore_dot_files: true, memcached: true },
            envoy: Vec::new(),
            before: Some("old".into()),
            admin: Some("unix:/run/a".parse().unwrap()),
            token_file: Some("t".into()),
            portable: true,
            deny_warnings: true,
            format: FormatArgs { format: Format::Github, json: false },
        };
        assert_eq!(typed(line).unwrap(), Command::Check(full));
    }

    #[test]
    fn rejects_other_arguments() {
        for line in [
            "tollgate nonsense",
            "tollgate -config /data",
            "tollgate serve now",
            "tollgate check --json --format text",
            "tollgate check --format xml",
            "tollgate explain",
            "tollgate explain --hits -1 d k=v",
            "tollgate request",
            "tollgate request d",
            "tollgate request --peek --hits 2 d k=v",
            "tollgate health --timeout 0",
            "tollgate completions",
            "tollgate completions dos",
        ] {
            let error = typed(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }

    #[test]
    fn help_and_version_are_not_errors() {
        for line in ["tollgate --help", "tollgate --version", "tollgate help request", "tollgate check -h"] {
            assert_eq!(typed(line).unwrap_err().exit_code(), 0, "{line}");
        }
        let version = typed("tollgate --version").unwrap_err().to_string();
        assert_eq!(version, format!("tollgate {}\n", env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn every_command_has_completions_and_a_man_page() {
        let names: Vec<String> =
            Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(names.len(), 19);
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            for name in &names {
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(print_man_pages(Some(dir.path())), Ok(Verdict::Yes));
        for name in &names {
            let page = std::fs::read_to_string(dir.path().join(format!("tollgate-{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            // Each page that a page names exists.
            let page = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for named in page.lines().filter_map(|line| line.strip_suffix("(1)")) {
                let named = named.replace('\\', "");
                assert!(dir.path().join(format!("{named}.1")).exists(), "{named}");
            }
        }
        assert!(print_man_pages(Some(Path::new("/dev/null/man1"))).is_err());
        let mut single = Vec::new();
        man().render(&mut single).unwrap();
        assert!(!String::from_utf8(single).unwrap().contains("help(1)"));
    }
}
