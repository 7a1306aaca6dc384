//! Reads logs on all cores: one thread a log cuts it into blocks of whole lines, and a pool of threads reads their
//! requests. [`Blocks`] returns them in the log's order.
//!
//! A log may be compressed by gzip or zstd. At most a few blocks of each log wait to be decided.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
};

use super::block::Block;
use faults::mutex::lock;

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

/// Adds the requests of a line, with the line's number, to the block.
pub(crate) type ReadLine = Arc<dyn Fn(&mut Block, &str, u32) -> Result<(), String> + Send + Sync>;

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

/// Lines to be read, and where the result is sent.
struct Job {
    log: usize,
    name: Arc<str>,
    first_line: u64,
    lines: Vec<u8>,
    done: Sender<Result<Block, Unreadable>>,
}

pub(crate) struct Pool(Sender<Job>);

impl Pool {
    pub(crate) fn start(threads: usize, read_line: &ReadLine) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..threads.max(1) {
            let (queue, read_line) = (queue.clone(), read_line.clone());
            thread::Builder::new().name("replay-read".to_owned()).spawn(move || {
                loop {
                    let job = lock(&queue).recv();
                    let Ok(Job { log, name, first_line, lines, done }) = job else { return };
                    // Nobody waits for it if the replay has ended.
                    let _ = done.send(read_lines(log, &name, first_line, lines, &read_line));
                }
            })?;
        }
        Ok(Self(jobs))
    }

    /// Starts to read a log. `read` counts its bytes as they are stored.
    pub(crate) fn read(&self, log: usize, source: Log, read: Arc<AtomicU64>) -> io::Result<Blocks> {
        let (parts, blocks) = mpsc::sync_channel(READ_AHEAD);
        let name: Arc<str> = source.name.as_str().into();
        let mut cutter = Cutter { log, name, line: 1, jobs: self.0.clone(), parts };
        let bytes = Counted { bytes: source.bytes, read };
        thread::Builder::new().name("replay-log".to_owned()).spawn(move || {
            if let Err(error) = uncompressed(bytes).and_then(|bytes| cutter.cut(bytes)) {
                let message = format!("cannot be read: {error}");
                cutter.fail(message);
            }
        })?;
        Ok(Blocks(blocks))
    }
}

/// The blocks of one log, in its order.
pub(crate) struct Blocks(Receiver<Receiver<Result<Block, Unreadable>>>);

impl Iterator for Blocks {
    type Item = Result<Block, Unreadable>;

    #[expect(
        clippy::expect_used,
        reason = "a thread of the pool sends a result for every job, unless it panics"
    )]
    fn next(&mut self) -> Option<Self::Item> {
        let part = self.0.recv().ok()?;
        Some(part.recv().expect("the result of a job"))
    }
}

struct Counted {
    bytes: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(into)?;
        self.read.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

/// The text of a log, which its first bytes may show to be compressed.
fn uncompressed(bytes: Counted) -> io::Result<Box<dyn Read>> {
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

/// Cuts a log into blocks.
struct Cutter {
    log: usize,
    name: Arc<str>,
    line: u64,
    jobs: Sender<Job>,
    parts: SyncSender<Receiver<Result<Block, Unreadable>>>,
}

impl Cutter {
    fn cut(&mut self, mut bytes: Box<dyn Read>) -> io::Result<()> {
        let mut lines = Vec::new();
        loop {
            let wanted = BLOCK_BYTES.saturating_sub(lines.len()).max(BLOCK_BYTES / 4);
            let count = bytes.by_ref().take(wanted as u64).read_to_end(&mut lines)?;
            if count == 0 {
                // The last line may have no end.
                if !lines.is_empty() {
                    self.send(lines);
                }
                return Ok(());
            }
            let Some(last) = memchr::memrchr(b'\n', &lines) else {
                if lines.len() > MAX_LINE_BYTES {
                    self.fail(format!("the line is longer than {MAX_LINE_BYTES} bytes"));
                    return Ok(());
                }
                continue;
            };
            let rest = lines.split_off(last + 1);
            if !self.send(std::mem::replace(&mut lines, rest)) {
                return Ok(());
            }
        }
    }

    /// Sends lines to the pool. False if the replay has ended.
    fn send(&mut self, lines: Vec<u8>) -> bool {
        let (done, part) = mpsc::channel();
        let first_line = self.line;
        self.line += memchr::memchr_iter(b'\n', &lines).count() as u64;
        let job = Job { log: self.log, name: self.name.clone(), first_line, lines, done };
        self.parts.send(part).is_ok() && self.jobs.send(job).is_ok()
    }

    /// Ends the log with an error at the next line.
    fn fail(&mut self, message: String) {
        let (done, part) = mpsc::channel();
        let error = Unreadable { log: self.name.to_string(), line: Some(self.line), message };
        // Nobody waits for it if the replay has ended.
        let _ = done.send(Err(error));
        let _ = self.parts.send(part);
    }
}

fn read_lines(
    log: usize,
    name: &str,
    first_line: u64,
    lines: Vec<u8>,
    read_line: &ReadLine,
) -> Result<Block, Unreadable> {
    let failed = |line: u64, message: String| Unreadable { log: name.to_owned(), line: Some(line), message };
    // Callers choose values, and a proxy logs their bytes: an invalid one must not end a log of millions.
    let lines = String::from_utf8(lines)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    let text = if first_line == 1 { lines.strip_prefix('\u{feff}').unwrap_or(&lines) } else { &lines };
    let mut block = Block::new(log, first_line, text.len());
    for (line, number) in text.lines().zip(0_u32..) {
        if !line.is_empty() {
            read_line(&mut block, line, number)
                .map_err(|message| failed(first_line + u64::from(number), message))?;
        }
    }
    Ok(block)
}
