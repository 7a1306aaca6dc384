//! The tokens of the admin API: read from a file, reloaded when it changes, compared in constant time.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use faults::{files, mutex::lock};
use ring::{hmac, rand::SystemRandom};
use tracing::{info, warn};

/// The minimum interval between two reads of the file. It is read without comparing times of modification: Kubernetes
/// replaces a mounted secret by swapping a symlink, which does not change them.
const INTERVAL: Duration = Duration::from_secs(1);

/// The maximum size of the file; a thousand tokens take less.
const MAX_BYTES: u64 = 1 << 20;

const MIN_TOKEN_BYTES: usize = 16;

pub struct Tokens {
    path: PathBuf,
    /// Tokens are compared by their tags under this key, so that the time does not depend on a common prefix.
    key: hmac::Key,
    state: Mutex<Loaded>,
}

struct Loaded {
    read: Instant,
    text: String,
    tokens: Vec<Token>,
    /// Why the file cannot be used; the tokens are those of the last time that it could.
    failure: Option<String>,
}

struct Token {
    name: String,
    tag: hmac::Tag,
}

impl Tokens {
    /// Reads the file. One without a token revokes all: the service starts, and every call is unauthorized.
    pub fn load(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("ADMIN_TOKEN_FILE={}: {why}", path.display());
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| failed("the system has no random numbers".to_owned()))?;
        let text = read(path).map_err(|error| failed(error.to_string()))?;
        let tokens = tokens(&text, &key).map_err(failed)?;
        if tokens.is_empty() {
            warn!(path = %path.display(), "no token in ADMIN_TOKEN_FILE: every call of the admin API is unauthorized");
        }
        let state = Loaded { read: Instant::now(), text, tokens, failure: None };
        Ok(Self { path: path.to_owned(), key, state: Mutex::new(state) })
    }

    /// Why the file cannot be used now, while the tokens that were read before stay valid.
    pub fn failure(&self) -> Option<String> {
        self.current().failure.clone()
    }

    fn current(&self) -> MutexGuard<'_, Loaded> {
        let mut state = lock(&self.state);
        if state.read.elapsed() >= INTERVAL {
            state.read = Instant::now();
            self.reload(&mut state);
        }
        state
    }

    pub(super) fn name_of(&self, token: &str) -> Option<String> {
        let state = self.current();
        // All tokens are compared, so that the time does not reveal which one matches.
        let matching = state
            .tokens
            .iter()
            .filter(|known| hmac::verify(&self.key, token.as_bytes(), known.tag.as_ref()).is_ok());
        matching.last().map(|known| known.name.clone())
    }

    fn reload(&self, state: &mut Loaded) {
        let read = read(&self.path).map_err(|error| error.to_string());
        if read.as_ref().is_ok_and(|text| *text == state.text) {
            state.failure = None;
            return;
        }
        match read.and_then(|text| Ok((tokens(&text, &self.key)?, text))) {
            Ok((tokens, text)) => {
                info!(tokens = tokens.len(), "reloaded ADMIN_TOKEN_FILE");
                *state = Loaded { read: state.read, text, tokens, failure: None };
            }
            Err(error) => {
                if state.failure.is_none() {
                    warn!(path = %self.path.display(), error, "keeping previous tokens of ADMIN_TOKEN_FILE");
                }
                state.failure = Some(format!("{}: {error}", self.path.display()));
            }
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    String::from_utf8(files::read(path, MAX_BYTES)?).map_err(io::Error::other)
}

/// The tokens of a file: one a line, optionally after a name. Lines that begin with `#` are comments.
fn tokens(text: &str, key: &hmac::Key) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, token) = match words[..] {
            [] => continue,
            [first, ..] if first.starts_with('#') => continue,
            [token] => ("token", token),
            [name, token] => (name, token),
            _ => return Err(format!("line {number}: expected TOKEN or NAME TOKEN")),
        };
        if token.len() < MIN_TOKEN_BYTES {
            return Err(format!(
                "line {number}: the token has {} bytes, expected at least {MIN_TOKEN_BYTES}; `openssl rand -hex 32` \
                 makes one",
                token.len()
            ));
        }
        tokens.push(Token { name: name.to_owned(), tag: hmac::sign(key, token.as_bytes()) });
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    const ONE: &str = "0123456789abcdef";
    const OTHER: &str = "fedcba9876543210";

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_token_has_the_name_in_front_of_it() {
        let (_dir, path) = file(&format!("# people\n\nann {ONE}\n{OTHER}\n"));
        let tokens = Tokens::load(&path).unwrap();
        assert_eq!(tokens.name_of(ONE).as_deref(), Some("ann"));
        assert_eq!(tokens.name_of(OTHER).as_deref(), Some("token"));
        for wrong in ["", "ann", &ONE[..15], &format!("{ONE}x"), "# people"] {
            assert_eq!(tokens.name_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn rejects_files_with_an_invalid_line() {
        for (text, expected) in [
            ("ann short", "line 1: the token has 5 bytes, expected at least 16"),
            ("\na b c", "line 2: expected TOKEN or NAME TOKEN"),
        ] {
            let (_dir, path) = file(text);
            let error = Tokens::load(&path).err().unwrap();
            assert!(error.contains(expected) && error.starts_with("ADMIN_TOKEN_FILE="), "{error}");
        }
        assert!(Tokens::load(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_changed_file_takes_effect_and_an_unusable_one_is_reported_until_it_is_mended() {
        let (_dir, path) = file(ONE);
        let tokens = Tokens::load(&path).unwrap();
        let later = || lock(&tokens.state).read = Instant::now().checked_sub(INTERVAL).unwrap();
        fs::write(&path, OTHER).unwrap();
        assert!(tokens.name_of(ONE).is_some(), "not read again yet");
        later();
        assert_eq!((tokens.name_of(ONE), tokens.name_of(OTHER).is_some()), (None, true));
        let keeps_tokens = |why: &str| {
            later();
            assert!(tokens.name_of(OTHER).is_some(), "{why}");
            let failure = tokens.failure().expect("a failure is reported");
            assert!(failure.starts_with(&*path.to_string_lossy()) && failure.contains(why), "{failure}");
        };
        fs::write(&path, "x").unwrap();
        keeps_tokens("line 1: the token has 1 bytes");
        fs::remove_file(&path).unwrap();
        keeps_tokens("No such file");
        // Reading it must not block, as it happens on the thread that accepts connections.
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        keeps_tokens("");
        fs::remove_file(&path).unwrap();
        for revoking in ["", "# nobody\n"] {
            fs::write(&path, OTHER).unwrap();
            later();
            assert!(tokens.name_of(OTHER).is_some() && tokens.failure().is_none());
            fs::write(&path, revoking).unwrap();
            later();
            assert_eq!((tokens.name_of(OTHER), tokens.failure()), (None, None), "{revoking:?}");
            assert!(Tokens::load(&path).is_ok(), "a restart changes nothing");
        }
    }
}
