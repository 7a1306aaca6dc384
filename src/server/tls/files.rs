//! The files of TLS as they are now: each one's bytes, or why it cannot be read.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use super::Options;

/// No certificate, key or bundle of authorities comes near: all those of the web are 200 KB.
const LARGEST: u64 = 4 << 20;

/// What was read.
#[derive(Hash)]
pub(super) struct Files {
    pub(super) certificate: Contents,
    pub(super) key: Contents,
    /// None where clients are asked for nothing.
    pub(super) authorities: Option<Contents>,
}

/// The bytes of a file, or why there are none.
pub(super) type Contents = Result<Vec<u8>, String>;

impl Files {
    pub(super) fn read(options: &Options) -> Self {
        Self {
            certificate: contents(&options.certificate),
            key: contents(&options.key),
            authorities: options.clients.as_ref().map(|clients| contents(&clients.authorities)),
        }
    }
}

fn contents(path: &Path) -> Contents {
    // A pipe would hold the reader until somebody writes, and a directory opens though it cannot be read.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err("is no file".to_owned()),
        Err(error) => return Err(reason(&error)),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(reason(&error)),
        Ok(_) if bytes.len() as u64 > LARGEST => Err(format!("is larger than {LARGEST} bytes")),
        Ok(_) => Ok(bytes),
    }
}

fn reason(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
        for (path, why) in [
            (dir.path().join("absent"), "cannot be read: No such file"),
            (dir.path().to_owned(), "is no file"),
            ("/dev/null".into(), "is no file"),
            (large, "is larger than"),
        ] {
            let told = contents(&path).unwrap_err();
            assert!(told.starts_with(why), "{}: {told}", path.display());
        }
    }

    #[test]
    fn a_file_that_can_be_read_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "all of it").unwrap();
        assert_eq!(contents(&path).as_deref(), Ok(&b"all of it"[..]));
    }
}
