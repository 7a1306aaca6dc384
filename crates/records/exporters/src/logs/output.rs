//! Standard error, which may be a file on a full disk.

use std::io::{ErrorKind, Stderr, Write, stderr};

/// Writes lines, and continues after errors.
pub(super) struct Output<W> {
    to: W,
    /// An error cut the last line.
    is_cut: bool,
}

impl Output<Stderr> {
    pub(super) fn stderr() -> Self {
        Self { to: stderr(), is_cut: false }
    }
}

impl<W: Write> Output<W> {
    /// Writes lines at once, so that lines of threads do not mix. Returns the number of lines lost: a failure of the log
    /// cannot be logged.
    pub(super) fn write(&mut self, lines: &str) -> usize {
        if self.is_cut {
            self.is_cut = !self.write_part(b"\n").is_empty();
        }
        let rest = if self.is_cut { lines.as_bytes() } else { self.write_part(lines.as_bytes()) };
        let written = &lines.as_bytes()[..lines.len() - rest.len()];
        self.is_cut |= !matches!(written.last(), None | Some(b'\n'));
        rest.split_inclusive(|byte| *byte == b'\n').count()
    }

    fn write_part<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => break,
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A disk with room for this many bytes, and what it holds.
    struct Disk(usize, String);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.0).min(7);
            if count == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.0 -= count;
            self.1.push_str(str::from_utf8(&bytes[..count]).unwrap());
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_joins_none() {
        for (room, lost, expected) in [
            (100, [0, 0, 0], "first line\nsecond\nthird\nfourth\n"),
            (18, [0, 1, 0], "first line\nsecond\nfourth\n"),
            (14, [1, 1, 0], "first line\nsec\nfourth\n"),
            (11, [1, 1, 0], "first line\nfourth\n"),
            (3, [2, 1, 0], "fir\nfourth\n"),
            (0, [2, 1, 0], "fourth\n"),
        ] {
            let mut output = Output { to: Disk(room, String::new()), is_cut: false };
            let mut seen = [output.write("first line\nsecond\n"), output.write("third\n"), 0];
            output.to.0 = 100;
            seen[2] = output.write("fourth\n");
            assert_eq!((seen, &*output.to.1), (lost, expected), "{room}");
        }
    }
}
