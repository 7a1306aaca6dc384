//! Reads logs, each on a thread of its own, ahead of the thread that decides: in blocks of whole lines, of which [`Blocks`]
//! returns the requests.
//!
//! A log may be compressed by gzip or zstd. At most a few blocks of each log wait to be decided.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, SyncSender},
    },
    thread::{self, JoinHandle},
};

use super::{access_log::AccessLog, block::Block, line};

/// Large enough that passing a block between threads costs nothing, and small enough that a hundred logs fit.
const BLOCK_BYTES: usize = 256 << 10;

/// The longest line. A request with a hundred descriptors of a hundred entries has less.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Blocks of one log that are read ahead.
const READ_AHEAD: usize = 8;

pub struct Log {
    pub name: String,
    pub bytes: Box<dyn Read + Send>,
}

/// What cannot be read, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    pub log: String,
    /// From 1; `None` if it is not about a line.
    pub line: Option<u64>,
    pub message: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.log)?;
        self.line.into_iter().try_for_each(|line| write!(f, ":{line}"))?;
        write!(f, ": {}", self.message)
    }
}

/// The blocks of one log, in its order, from the thread that reads it.
pub(crate) struct Blocks {
    blocks: Receiver<Block>,
    reader: Option<JoinHandle<Result<(), Unreadable>>>,
}

impl Blocks {
    /// Starts to read a log. `read` counts its bytes as they are stored.
    pub(crate) fn start(
        log: Log,
        access_log: Option<Arc<AccessLog>>,
        read: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (sender, blocks) = mpsc::sync_channel(READ_AHEAD);
        let reader = Reader { log: log.name.into(), line: 1, access_log, blocks: sender };
        let bytes = CountedReader { bytes: log.bytes, read };
        let thread = thread::Builder::new().name("replay-log".to_owned());
        Ok(Self { blocks, reader: Some(thread.spawn(move || reader.read(bytes))?) })
    }

    /// The next block; `None` at the end of the log.
    pub(crate) fn next(&mut self) -> Result<Option<Block>, Unreadable> {
        if let Ok(block) = self.blocks.recv() {
            return Ok(Some(block));
        }
        match self.reader.take().map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(ended)) => ended.map(|()| None),
            // It must not look like the end of the log.
            Some(Err(panic)) => panic::resume_unwind(panic),
        }
    }
}

struct CountedReader {
    bytes: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(into)?;
        self.read.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

/// The text of a log, which its first bytes may show to be compressed.
fn uncompressed(bytes: CountedReader) -> io::Result<Box<dyn Read>> {
    let mut bytes = BufReader::with_capacity(BLOCK_BYTES, bytes);
    Ok(match bytes.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Frames { frame: None, bytes: Some(bytes) }),
        _ => Box::new(bytes),
    })
}

/// The crate's errors show its types.
fn damaged(_: impl std::error::Error) -> io::Error {
    io::Error::other("the zstd data is cut or damaged")
}

/// The frames of a zstd file, one after another: rotated logs may be concatenated.
struct Frames<R: BufRead> {
    frame: Option<ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
    /// `None` while a frame has it.
    bytes: Option<R>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(into).map_err(damaged)?;
                if count > 0 {
                    return Ok(count);
                }
                self.bytes = self.frame.take().map(ruzstd::decoding::StreamingDecoder::into_inner);
            }
            let Some(mut bytes) = self.bytes.take() else { return Ok(0) };
            if bytes.fill_buf()?.is_empty() {
                self.bytes = Some(bytes);
                return Ok(0);
            }
            let frame = ruzstd::decoding::StreamingDecoder::new(bytes).map_err(damaged)?;
            self.frame = Some(frame);
        }
    }
}

/// Reads a log block by block.
struct Reader {
    /// Its name.
    log: Arc<str>,
    /// The number of the next line.
    line: u64,
    /// `None` for a log of requests.
    access_log: Option<Arc<AccessLog>>,
    blocks: SyncSender<Block>,
}

impl Reader {
    fn read(mut self, bytes: CountedReader) -> Result<(), Unreadable> {
        let unreadable = |reader: &Self, error: io::Error| {
            reader.unreadable(reader.line, format!("cannot be read: {error}"))
        };
        let mut bytes = uncompressed(bytes).map_err(|error| unreadable(&self, error))?;
        let mut lines = Vec::new();
        loop {
            let wanted = BLOCK_BYTES.saturating_sub(lines.len()).max(BLOCK_BYTES / 4);
            let count = bytes.by_ref().take(wanted as u64).read_to_end(&mut lines);
            if count.map_err(|error| unreadable(&self, error))? == 0 {
                // The last line may have no end.
                if !lines.is_empty() {
                    self.send(lines)?;
                }
                return Ok(());
            }
            let Some(last) = memchr::memrchr(b'\n', &lines) else {
                if lines.len() > MAX_LINE_BYTES {
                    let message = format!("the line is longer than {MAX_LINE_BYTES} bytes");
                    return Err(self.unreadable(self.line, message));
                }
                continue;
            };
            let rest = lines.split_off(last + 1);
            if !self.send(std::mem::replace(&mut lines, rest))? {
                return Ok(());
            }
        }
    }

    /// Reads whole lines and sends their requests. False if the replay has ended.
    fn send(&mut self, lines: Vec<u8>) -> Result<bool, Unreadable> {
        // Callers choose values, and a proxy logs their bytes: an invalid one must not end a log of millions.
        let lines = String::from_utf8(lines)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let text = if self.line == 1 { lines.strip_prefix('\u{feff}').unwrap_or(&lines) } else { &lines };
        let mut block = Block::new(self.log.clone(), self.line, text.len());
        for (line, number) in text.lines().zip(0_u32..) {
            if line.is_empty() {
                continue;
            }
            let read = match &self.access_log {
                Some(log) => log.read(&mut block, line, number),
                None => line::read(&mut block, line, number),
            };
            read.map_err(|message| self.unreadable(self.line + u64::from(number), message))?;
        }
        self.line += memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64;
        Ok(self.blocks.send(block).is_ok())
    }

    fn unreadable(&self, line: u64, message: String) -> Unreadable {
        Unreadable { log: self.log.to_string(), line: Some(line), message }
    }
}
