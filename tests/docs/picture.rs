//! The picture of a terminal in the README, made from the output of commands: docs/terminal.svg.

use std::{env, fmt::Write as _, fs, process::Command};

use support::{clock::Clock, server::BINARY};

use super::{read, root};

const PICTURE: &str = "docs/terminal.svg";

/// The commands of the picture, run where `config/` and `rules/` are.
const COMMANDS: [&str; 2] =
    ["tollgate check rules", "tollgate explain --rules config lesson api=orders,method=POST"];

/// A file with two mistakes.
const MISTAKES: &str = "domain: shop
descriptors:
  - key: client_id
    rate_limit:
      unit: hours
      requests_per_unit: 3
  - key: plan
    value: gold
    rate_limits: {}
";

/// Width of a character and height of a line, in pixels.
const CHARACTER: f64 = 8.43;
const LINE: usize = 20;

#[test]
fn the_picture_of_a_terminal_shows_what_the_commands_print() {
    let _clock = Clock::ordinary().enter();
    let picture = drawn(&session());
    if without_moments(&read(PICTURE)) == without_moments(&picture) {
        return;
    }
    if env::var_os("TOLLGATE_WRITE_DOCS").is_some() {
        return fs::write(root().join(PICTURE), picture).unwrap();
    }
    panic!(
        "{PICTURE} differs from what the commands print: TOLLGATE_WRITE_DOCS=1 cargo test --test docs draws it"
    );
}

/// The commands with their output, in colour.
fn session() -> String {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [("rules/shop.yaml", MISTAKES), ("config/lesson.yaml", &read("config/lesson.yaml"))] {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        fs::write(dir.path().join(path), text).unwrap();
    }
    let mut session = String::new();
    for command in COMMANDS {
        let arguments = command.split(' ').skip(1);
        let mut command_line = Command::new(BINARY);
        command_line
            .args(arguments)
            .current_dir(dir.path())
            .env("CLICOLOR_FORCE", "1")
            .env_remove("NO_COLOR");
        let output = command_line.output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        // Writing to a String cannot fail.
        let _ = writeln!(session, "\u{1b}[32m$\u{1b}[0m {command}\n{}", String::from_utf8(printed).unwrap());
    }
    session.trim_end().to_owned()
}

/// The picture without times.
fn without_moments(picture: &str) -> String {
    let is_digit = |character: char| character.is_ascii_digit();
    let mut parts = picture.split("resets in ");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + "resets in N" + part.trim_start_matches(is_digit));
    // A counter's key ends with the start of its window.
    let lines = text.lines().map(|line| match line.rfind("_17").or_else(|| line.rfind("_18")) {
        Some(at) => format!("{}_N{}", &line[..at], line[at + 1..].trim_start_matches(is_digit)),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Draws text with ANSI colours.
fn drawn(session: &str) -> String {
    let lines: Vec<_> = session.lines().map(spans).collect();
    let widest =
        lines.iter().map(|line| line.iter().map(|(_, text)| text.chars().count()).sum::<usize>()).max();
    #[expect(clippy::cast_precision_loss, reason = "a line has fewer than 2^52 characters")]
    let width = (widest.unwrap_or_default() as f64).mul_add(CHARACTER, 40.0).ceil();
    let height = lines.len() * LINE + 56;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"tollgate check and tollgate explain in a terminal\">\n\
         <style>text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d0d7de;\
         white-space:pre}}.b{{font-weight:700}}.d{{fill:#8b949e}}.c31{{fill:#ff7b72}}.c32{{fill:#7ee787}}\
         .c33{{fill:#e3b341}}.c36{{fill:#79c0ff}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <circle cx=\"20\" cy=\"18\" r=\"6\" fill=\"#ff5f57\"/><circle cx=\"40\" cy=\"18\" r=\"6\" fill=\"#febc2e\"/>\
         <circle cx=\"60\" cy=\"18\" r=\"6\" fill=\"#28c840\"/>\n"
    );
    for (index, line) in lines.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(picture, "<text x=\"20\" y=\"{}\" xml:space=\"preserve\">", 54 + index * LINE);
        for (class, text) in line {
            let _ = match class.as_str() {
                "" => write!(picture, "{}", escaped(text)),
                class => write!(picture, "<tspan class=\"{class}\">{}</tspan>", escaped(text)),
            };
        }
        picture.push_str("</text>\n");
    }
    picture + "</svg>\n"
}

/// The parts of a line with their classes.
fn spans(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut class = String::new();
    for (index, part) in line.split("\u{1b}[").enumerate() {
        let (codes, text) = if index == 0 { ("", part) } else { part.split_once('m').unwrap() };
        for code in codes.split(';').filter(|code| !code.is_empty()) {
            match code {
                "0" => class.clear(),
                "1" => class.push_str(" b"),
                "2" => class.push_str(" d"),
                colour => class.extend([" c", colour]),
            }
        }
        if !text.is_empty() {
            found.push((class.trim().to_owned(), text.to_owned()));
        }
    }
    found
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
