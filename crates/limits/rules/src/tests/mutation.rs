//! Rules files mutated at random: compiling ends in time and without a panic, and rejected files have an error.
//!
//! `TOLLGATE_MUTATIONS` is the number of mutations.

use std::{
    env,
    fmt::Write,
    time::{Duration, Instant},
};

use crate::{CompileOptions, Compiled, SourceFile, compile};
use text::diagnostics::{Diagnostic, render};

/// The default number of mutations: a few seconds without optimisation.
const MUTATIONS: u64 = 4_000;

/// Much more than any mutated file needed, and less than a reload may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rules of every kind, in every notation.
const SEEDS: [&str; 7] = [
    "domain: d
descriptors:
  - key: k
    value: 'a*b'
    share_threshold: true
    rate_limit:
      unit: hour
      requests_per_unit: 1_000
      name: n
      replaces:
        - name: m
",
    r#"domain: d
descriptors: [{key: k, value: "t\tb \u00e9", rate_limit: {unit: day, requests_per_unit: 0x10},
  descriptors: [{key: m, shadow_mode: yes}]}]
"#,
    "base: &b
  rate_limit: &l {unit: minute, requests_per_unit: 5}
domain: !!str d
descriptors:
- <<: *b
  key: k
  descriptors:
  - <<: [*b, *b]
    key: m
    rate_limit:
      <<: *l
      unit: week
",
    "%YAML 1.1
---
domain: d
descriptors:
- ? key
  : |
   k
  value: >-
   folded
   text
  metadata: {a: 1, b: [x, {1: ~}], c: 2026-01-02, d: !!binary aGVsbG8=, e: !mine {f: .inf}}
...
",
    "# a comment\r\ndomain: d\r\ndescriptors:\r\n- key: k # another\r\n  rate_limit: {unlimited: on}\r\n---\r\n",
    "domain: d
descriptors:
- key: k
  rate_limit:
  - {unit: minute, unit_multiplier: 15, requests_per_unit: 9, algorithm: token_bucket, burst: 3, name: n}
  - unit: hour
    requests_per_unit: 70
    algorithm: sliding_log
",
    r#"{"domain": "d", "on_store_failure": "deny", "descriptors": [{"key": "k", "rate_limit": {"unit": "HOUR", "requests_per_unit": 3}}]}"#,
];

/// Tokens of YAML, and characters that it does not allow.
const PIECES: [&str; 46] = [
    ":",
    ": ",
    "- ",
    "-",
    "?",
    "? ",
    ",",
    "[",
    "]",
    "{",
    "}",
    "#",
    " #",
    "&",
    "&a ",
    "*",
    "*a",
    "!",
    "!!",
    "!!int ",
    "!<x>",
    "!a,",
    "\\'",
    "|",
    ">",
    "|+2",
    "'",
    "\"",
    "%",
    "@",
    "`",
    "<<: ",
    "~",
    "\n",
    "\r\n",
    "\t",
    "  ",
    "---\n",
    "...\n",
    "\\",
    "\\x",
    "\0",
    "\u{85}",
    "\u{feff}",
    "\u{1f600}",
    "999999999999",
];

/// A small generator of pseudo-random numbers, so that a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // Vigna's xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let rolled = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(rolled).unwrap() % sides.max(1)
    }
}

fn damaged(dice: &mut Dice) -> Vec<u8> {
    let mut text = SEEDS[dice.roll(SEEDS.len())].as_bytes().to_vec();
    for _ in 0..=dice.roll(3) {
        let at = dice.roll(text.len() + 1);
        let until = (at + dice.roll(12)).min(text.len());
        match dice.roll(6) {
            0 => text.truncate(at),
            1 => drop(text.drain(at..until)),
            2 => drop(text.splice(at..at, PIECES[dice.roll(PIECES.len())].bytes())),
            3 => drop(text.splice(at..until, PIECES[dice.roll(PIECES.len())].bytes())),
            4 => {
                let part = text[at..until].to_vec();
                let there = dice.roll(text.len() + 1);
                drop(text.splice(there..there, part));
            }
            _ => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << dice.roll(8)),
        }
    }
    text
}

fn compile_one(text: &[u8]) -> Compiled {
    compile(&[SourceFile { name: "a.yaml".to_owned(), text: text.to_vec() }], CompileOptions::default())
}

#[test]
fn mutated_files_cause_diagnostics_and_no_panic() {
    let wanted =
        env::var("TOLLGATE_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATIONS);
    let mut dice = Dice(0x746f_6c6c_6761_7465);
    let mut taken = 0;
    for _ in 0..wanted {
        let text = damaged(&mut dice);
        let begun = Instant::now();
        let compiled = compile_one(&text);
        let shown = String::from_utf8_lossy(&text);
        assert!(begun.elapsed() < PATIENCE, "{shown:?} took {:?}", begun.elapsed());
        assert_eq!(
            compiled.rules.is_none(),
            compiled.diagnostics.iter().any(Diagnostic::is_error),
            "{shown:?}"
        );
        for diagnostic in &compiled.diagnostics {
            assert!(render(diagnostic, Some(&shown)).contains(&diagnostic.message), "{shown:?}");
        }
        taken += u64::from(compiled.rules.is_some());
    }
    // Some mutations must be valid, and some invalid.
    assert!(taken * 20 > wanted && taken * 20 < wanted * 19, "{taken} of {wanted} were taken");
}

#[test]
fn rejects_a_file_with_too_many_aliases() {
    let mut laughs = String::from("a0: &a0 [x]\n");
    let mut merges = String::from("m0: &m0 {k: v}\n");
    for level in 1..40 {
        let below = level - 1;
        writeln!(laughs, "a{level}: &a{level} [{}]", vec![format!("*a{below}"); 10].join(", ")).unwrap();
        writeln!(merges, "m{level}: &m{level}\n  <<: [*m{below}, *m{below}]").unwrap();
    }
    for text in [laughs, merges] {
        let begun = Instant::now();
        let compiled = compile_one(text.as_bytes());
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        let expected =
            "the file has more than 500000 values, with aliases expanded (RULES_MAX_VALUES, for all files)";
        assert_eq!(compiled.diagnostics[0].message, expected);
    }
}

#[test]
fn rejects_a_file_nested_too_deep_and_accepts_the_maximum_depth() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
        let text = open.repeat(10_000) + &close.repeat(10_000);
        let compiled = compile_one(text.as_bytes());
        assert_eq!(
            compiled.diagnostics[0].message, "lists and maps are nested more than 250 levels deep",
            "{open}"
        );
    }
    // 124 lists of descriptors: the file, then a list and a map for each.
    let depth = 124;
    let rules = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}, ".repeat(depth);
    let text = format!("domain: d\n{rules}{}", "}]".repeat(depth));
    let compiled = compile_one(text.as_bytes());
    assert_eq!(compiled.diagnostics, []);
    assert_eq!(compiled.rules.unwrap().rule_count(), u32::try_from(depth).unwrap());
}
