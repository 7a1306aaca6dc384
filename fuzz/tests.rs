//! A short, reproducible run of each target on its seeds and on mutations of them.
//!
//! Each target gets as many inputs as [`BUDGET`] allows, or `TOLLGATE_FUZZ_INPUTS` of them. `TOLLGATE_FUZZ_SEED` is the seed
//! of the mutations. A failure names the target and the file of its input.

use std::{
    env, fs, panic,
    path::Path,
    time::{Duration, Instant},
};

use super::{TARGETS, Target};

/// The time for each target: a few seconds for all of them.
const BUDGET: Duration = Duration::from_millis(300);

/// Tokens of the formats, which reach more code than random bytes.
const WORDS: &[&[u8]] = &[
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x0a",
    b"\x12\x00",
    b"\x0b",
    b"\x0c",
    b"*16777216\r\n",
    b"$-1\r\n",
    b"$2147483648\r\n",
    b"*-1\r\n",
    b":-9223372036854775808\r\n",
    b"VALUE k 0 18446744073709551615\r\n",
    b"\r\n",
    b"\xc0\x0c",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b": ",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!binary ",
    b"!<,>",
    b"|+2\n",
    b"? ",
    b"- ",
    b"%",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xf0\x9f\x98\x80",
    b"18446744073709551616",
    b"-1",
    b"1e999",
    b"{retry_after}",
    b"${1}",
    b"00-",
    b"-01",
    b"99999999n",
    b"\0",
];

/// A stream of pseudo-random numbers (the generator known as `SplitMix64`).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    /// A copy with some bytes changed, dropped, doubled, or replaced by words and parts of another seed.
    fn damaged(&mut self, original: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = original.to_vec();
        for _ in 0..=self.below(5) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(8)).min(bytes.len());
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] = self.next().to_le_bytes()[0],
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let part = bytes[at..end].repeat(1 + self.below(20));
                    bytes.splice(at..at, part);
                }
                4 => drop(bytes.splice(at..end, WORDS[self.below(WORDS.len())].iter().copied())),
                5 => {
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(40)).min(other.len());
                    drop(bytes.splice(at..end, other[from..to].iter().copied()));
                }
                _ => bytes.truncate(bytes.len() - self.below(4).min(bytes.len())),
            }
        }
        bytes
    }
}

fn seeds(target: Target) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target.name);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", target.name);
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run(target: Target, input: &[u8]) {
    let outcome = panic::catch_unwind(|| (target.run)(input));
    if let Err(panic) = outcome {
        let file = env::temp_dir().join(format!("tollgate-fuzz-{}", target.name));
        fs::write(&file, input).unwrap();
        println!("target {}, input in {}: {}", target.name, file.display(), input.escape_ascii());
        panic::resume_unwind(panic);
    }
}

#[test]
fn no_parser_panics_on_mutated_input() {
    let inputs: Option<u64> = env::var("TOLLGATE_FUZZ_INPUTS").ok().map(|text| text.parse().unwrap());
    for target in TARGETS {
        let start = Instant::now();
        let mut noise = Noise(number("TOLLGATE_FUZZ_SEED", 7));
        let seeds = seeds(*target);
        for seed in &seeds {
            run(*target, seed);
        }
        let is_enough = |n| inputs.map_or_else(|| start.elapsed() > BUDGET, |inputs| n >= inputs);
        for _ in (0..).take_while(|n| !is_enough(*n)) {
            let (one, other) = (noise.below(seeds.len()), noise.below(seeds.len()));
            run(*target, &noise.damaged(&seeds[one], &seeds[other]));
        }
    }
}

#[test]
fn target_names_are_unique() {
    for target in TARGETS {
        assert_eq!(TARGETS.iter().filter(|other| other.name == target.name).count(), 1, "{}", target.name);
        assert!(super::target(target.name).is_some());
    }
    assert!(super::target("none").is_none());
}
