//! Opens and reads the files that settings name, which must be regular files: a named pipe blocks the thread until it has
//! a writer, and a device may have no end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Opens a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a named pipe would block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Reads a regular file.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("larger than {max_bytes} bytes")));
    }
    Ok(bytes)
}

/// The error of a file or socket that cannot be made, read or written, with what to do.
pub fn advised(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "create its directory",
        io::ErrorKind::PermissionDenied => {
            "let the user of this process read and write there, or choose another path"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount a writable directory there, or choose another path",
        _ => return error.to_string(),
    };
    format!("{error}: {advice}")
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn reads_regular_files_up_to_a_size() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "0123456789").unwrap();
        assert_eq!(read(&at("file"), 10).unwrap(), b"0123456789");
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for (path, error) in [
            (at("file"), "larger than 9 bytes"),
            (at("pipe"), "not a regular file"),
            ("/dev/zero".into(), "not a regular file"),
            (dir.path().to_owned(), "not a regular file"),
            (at("absent"), "No such file or directory (os error 2)"),
        ] {
            assert_eq!(read(&path, 9).unwrap_err().to_string(), error, "{}", path.display());
        }
    }
}
