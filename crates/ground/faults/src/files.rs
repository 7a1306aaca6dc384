//! Opens and reads the files that settings name, which must be regular files: a named pipe blocks the thread until it has
//! a writer, and a device may have no end. Writes them so that a full disk leaves neither a part of a line nor of a file.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
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

/// Appends lines to a file that is opened for appending. After an error the file has none of them: a part of a line would
/// make the next one unreadable.
pub fn append(file: &mut File, lines: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    file.write_all(lines).inspect_err(|_| {
        // A pipe has no length to restore.
        let _ = file.set_len(before);
    })
}

/// Replaces a file by what `write` writes, and returns the new one, opened for appending. A crash or an error leaves the
/// old one.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = write_new(&new, write).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| {
        // It would take the room that a full disk lacks.
        let _ = fs::remove_file(&new);
    })?;
    OpenOptions::new().append(true).open(path)
}

fn write_new(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut writer = BufWriter::new(File::create(path)?);
    write(&mut writer)?;
    writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
