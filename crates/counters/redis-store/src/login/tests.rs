//! Credentials that are read again, and what is wrong with their files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use super::*;

const SECRET: &str = "hunter2";

fn login(path: &Path, user: Option<&str>) -> Login {
    let user = user.map(str::to_owned);
    let file = CredentialFile { variable: "REDIS_AUTH_FILE", path: path.to_owned(), user };
    Login::new(Some(&CredentialSource::File(file)), "REDIS_AUTH", &Edges::system()).unwrap()
}

fn found(current: &CurrentLogin) -> (Option<&str>, &str, u64) {
    let Credentials { user, password } = &current.credentials;
    (user.as_deref(), &password.0, current.generation)
}

#[test]
fn a_line_is_a_password_or_a_user_and_a_password() {
    for (text, user, password) in [
        ("p", None, "p"),
        ("p\n", None, "p"),
        ("p\r\n", None, "p"),
        ("u:p\n", Some("u"), "p"),
        ("u:p:q", Some("u"), "p:q"),
        (":p", None, "p"),
        (" p ", None, " p "),
        ("\u{e9}:\u{1f511}", Some("\u{e9}"), "\u{1f511}"),
    ] {
        let read = parse(text.as_bytes()).unwrap();
        assert_eq!((read.user.as_deref(), &*read.password.0), (user, password), "{text:?}");
    }
}

#[test]
fn other_contents_are_reported_without_being_shown() {
    for (bytes, why) in [
        (&b""[..], "is empty"),
        (b"\n", "is empty"),
        (b":", "is empty"),
        (b"hunter2:\n", "a user without a password"),
        (b"hunter2\n\n", "several lines"),
        (b"hunter2\nhunter2", "several lines"),
        (b"hunter2\rhunter2", "several lines"),
        (b"\xef\xbb\xbfhunter2", "byte order mark"),
        (b"hunter2\xff", "not UTF-8"),
        (b"h\0u\0n\0t\0e\0r\x002\0\xfe", "not UTF-8"),
    ] {
        let problem = parse(bytes).unwrap_err();
        assert!(problem.contains(why) && !problem.contains(SECRET), "{bytes:?}: {problem}");
    }
}

#[tokio::test]
async fn a_changed_file_has_a_new_generation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis");
    fs::write(&path, "one").unwrap();
    let login = login(&path, Some("u"));
    for (text, expected) in [
        ("one", (Some("u"), "one", 1)),
        ("one\n", (Some("u"), "one", 1)),
        ("two", (Some("u"), "two", 2)),
        ("v:two", (Some("v"), "two", 3)),
        ("one", (Some("u"), "one", 4)),
    ] {
        fs::write(&path, text).unwrap();
        assert_eq!(found(&login.now().await.unwrap().unwrap()), expected, "{text}");
        assert_eq!(found(&login.poll().await.unwrap()), expected, "{text}");
    }
}

/// As Kubernetes, Vault's agent and CSI drivers do: the file is a symlink into a directory that is a symlink.
#[tokio::test]
async fn a_swapped_directory_is_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["1", "2"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("redis"), format!("password {name}")).unwrap();
    }
    symlink("1", at("..data")).unwrap();
    symlink("..data/redis", at("redis")).unwrap();
    let login = login(&at("redis"), None);
    assert_eq!(found(&login.poll().await.unwrap()), (None, "password 1", 1));
    symlink("2", at("..new")).unwrap();
    fs::rename(at("..new"), at("..data")).unwrap();
    fs::remove_dir_all(at("1")).unwrap();
    assert_eq!(found(&login.poll().await.unwrap()), (None, "password 2", 2));
}

#[tokio::test]
async fn the_last_credentials_stay_while_the_file_is_invalid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis");
    let login = login(&path, None);
    let absent = login.now().await.unwrap_err();
    let expected = format!(
        "REDIS_AUTH_FILE={}: expected a file with one line, password or user:password",
        path.display()
    );
    assert!(absent.starts_with(&expected) && absent.contains("No such file"), "{absent}");
    assert_eq!(login.poll().await, None);
    fs::write(&path, SECRET).unwrap();
    assert_eq!(found(&login.now().await.unwrap().unwrap()), (None, SECRET, 1));
    let large = "x".repeat(65_537);
    for text in ["", "a\nb", &large] {
        fs::write(&path, text).unwrap();
        assert_eq!(found(&login.now().await.unwrap().unwrap()), (None, SECRET, 1));
        assert_eq!(found(&login.poll().await.unwrap()), (None, SECRET, 1));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(found(&login.now().await.unwrap().unwrap()), (None, SECRET, 1));
}

#[tokio::test]
async fn no_part_of_a_file_is_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis");
    for (text, why) in [
        (format!("{SECRET}\n{SECRET}"), "several lines"),
        (SECRET.repeat(10_000), "larger than 65536 bytes"),
        (format!("{SECRET}:"), "a user without a password"),
    ] {
        fs::write(&path, text).unwrap();
        let error = login(&path, None).now().await.unwrap_err();
        assert!(error.contains(why) && !error.contains(SECRET), "{error}");
    }
    let file = login(dir.path(), None).now().await.unwrap_err();
    assert!(file.contains("not a regular file"), "{file}");
}

#[tokio::test]
async fn warns_once_about_a_file_that_everyone_can_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis");
    fs::write(&path, SECRET).unwrap();
    for (mode, warns) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let login = login(&path, None);
        login.poll().await.unwrap();
        assert_eq!(lock(&login.state).warned_of_mode, warns, "{mode:o}");
    }
}

#[test]
fn credentials_are_not_printed() {
    let login = CurrentLogin { credentials: Credentials::parse("u:hunter2"), generation: 1 };
    assert!(!format!("{login:?}").contains(SECRET));
}
