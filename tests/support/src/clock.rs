//! The clock of the programs that a test starts, which Debian's `faketime` moves.
//!
//! [`server`](super::server), [`redis`](super::redis) and [`memcached`](super::memcached) start their programs on
//! the clock of the test's thread. By default it begins at an ordinary time: five minutes past an hour, when no two
//! windows began in the same second. No limit per hour or longer resets during such a test, whatever the machine's time
//! is. `TOLLGATE_TEST_CLOCK` sets another time for every test that does not choose its own.

use std::{
    cell::RefCell,
    env, fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

/// The directories of the library on Debian, by architecture.
const LIBRARIES: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime"];

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

thread_local! {
    static CURRENT: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// A clock with a fixed or adjustable offset from the machine's.
#[derive(Clone)]
pub struct Clock {
    /// The offset in seconds, shared by clones.
    ahead: Arc<Mutex<f64>>,
    file: Option<Arc<TempDir>>,
}

/// Restores the thread's clock when it is dropped.
pub struct Entered(Option<Clock>);

impl Clock {
    /// The clock of this thread.
    pub fn current() -> Self {
        CURRENT.with_borrow_mut(|current| current.get_or_insert_with(Self::of_the_suite).clone())
    }

    /// A clock that begins at this time, such as `2026-12-31T23:59:55Z`; fractions of a second are allowed.
    pub fn at(moment: &str) -> Self {
        Self::ahead(seconds(moment) - real())
    }

    /// The same clock, which [`Clock::step`] also moves for running programs.
    pub fn steerable(self) -> Self {
        let dir =
            tempfile::Builder::new().prefix("tollgate-clock-").tempdir().expect("cannot create a directory");
        write(dir.path(), self.get());
        Self { file: Some(Arc::new(dir)), ..self }
    }

    /// An ordinary time, or `TOLLGATE_TEST_CLOCK`.
    fn of_the_suite() -> Self {
        match env::var("TOLLGATE_TEST_CLOCK") {
            Ok(moment) if moment == "machine" => Self::machine(),
            Ok(moment) if !moment.is_empty() => Self::at(&moment),
            _ => Self::ordinary(),
        }
    }

    /// A clock that begins at an ordinary time, even if `TOLLGATE_TEST_CLOCK` is set.
    pub fn ordinary() -> Self {
        let real = real();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "seconds of this century"
        )]
        let ahead = ordinary(real as i64) as f64 - real;
        Self::ahead(ahead)
    }

    /// The machine's clock, for comparisons with Go programs, which `faketime` cannot move.
    pub fn machine() -> Self {
        Self::ahead(0.0)
    }

    /// Sets the clock of this thread until the result is dropped.
    #[must_use]
    pub fn enter(&self) -> Entered {
        Entered(CURRENT.replace(Some(self.clone())))
    }

    /// A clock that is ahead of this one.
    pub fn ahead_by(&self, seconds: f64) -> Self {
        Self::ahead(self.get() + seconds)
    }

    /// Moves it forwards or backwards, also for running programs.
    pub fn step(&self, seconds: f64) {
        let ahead = self.get() + seconds;
        write(self.file.as_ref().expect("the clock is not steerable").path(), ahead);
        *self.ahead.lock().expect("the lock is poisoned") = ahead;
    }

    /// Stops the clock of running programs at this time in seconds since 1970.
    pub fn stop_at(&self, time: f64) {
        let text = timestamp(time).replace('T', " ").replace('Z', &format!("{:.6}", time.fract())[1..]);
        put(self.file.as_ref().expect("the clock is not steerable").path(), &text);
    }

    /// Moves it to this many seconds after a time, or before it.
    pub fn move_to(&self, moment: &str, seconds: f64) {
        self.step(Self::at(moment).now() + seconds - self.now());
    }

    /// The time in seconds since 1970.
    pub fn now(&self) -> f64 {
        real() + self.get()
    }

    fn ahead(seconds: f64) -> Self {
        Self { ahead: Arc::new(Mutex::new(seconds)), file: None }
    }

    fn get(&self) -> f64 {
        *self.ahead.lock().expect("the lock is poisoned")
    }

    /// Makes a program use this clock.
    pub fn apply(&self, command: &mut Command) {
        if self.get() == 0.0 && self.file.is_none() {
            return;
        }
        // The multi-threaded library locks for every read of a clock. The other one is safe as long as the offset is
        // fixed.
        let name = if self.file.is_some() { "libfaketimeMT.so.1" } else { "libfaketime.so.1" };
        // Redis' allocator reads a clock before the library is ready. The system's allocator, if found first, replaces it.
        command.env("LD_PRELOAD", library(name) + ":libc.so.6");
        // Timers and file times are not faked.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("NO_FAKE_STAT", "1");
        match &self.file {
            Some(dir) => {
                // The time of a stopped clock is local.
                command.env("FAKETIME_NO_CACHE", "1").env("TZ", "UTC");
                command.env("FAKETIME_TIMESTAMP_FILE", dir.path().join("ahead"))
            }
            None => command
                .env("FAKETIME", format!("{:+.6}", self.get()))
                .env("FAKETIME_CACHE_DURATION", "1000000000"),
        };
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The time of this test, in whole seconds since 1970.
pub fn now() -> u64 {
    Duration::from_secs_f64(Clock::current().now()).as_secs()
}

/// A year in which no other window ends.
pub const YEAR: u64 = 365 * 24 * 3600;

/// The start of the current window of this many seconds.
pub fn window(seconds: u64) -> u64 {
    let now = now();
    now - now % seconds
}

/// Removes the two files that the library leaves for each killed program.
pub fn clean_up_after(process: u32) {
    for name in [format!("sem.faketime_sem_{process}"), format!("faketime_shm_{process}")] {
        // A program on the machine's clock has none.
        let _ = fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

/// The next ordinary time: five minutes past an hour, when all windows began in different seconds.
fn ordinary(from: i64) -> i64 {
    let first = from - from.rem_euclid(HOUR) + 5 * MINUTE + 2;
    let mut hours = (0..).map(|hour| first + hour * HOUR).filter(|moment| *moment >= from);
    hours.find(|moment| starts(*moment).windows(2).all(|pair| pair[0] != pair[1])).expect("no ordinary time")
}

/// The starts of the windows of all units except the second, sorted.
fn starts(moment: i64) -> [i64; 6] {
    let mut starts = [MINUTE, HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY].map(|length| moment - moment % length);
    starts.sort_unstable();
    starts
}

fn real() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs_f64()
}

fn write(dir: &Path, ahead: f64) {
    put(dir, &format!("{ahead:+.6}"));
}

/// Replaces the file atomically.
fn put(dir: &Path, text: &str) {
    let part = dir.join("ahead.part");
    fs::write(&part, format!("{text}\n")).expect("cannot write the clock file");
    fs::rename(&part, dir.join("ahead")).expect("cannot replace the clock file");
}

/// A time in seconds since 1970 as a timestamp, without the fraction.
pub fn timestamp(time: f64) -> String {
    let seconds = Duration::from_secs_f64(time).as_secs().cast_signed();
    prost_types::Timestamp { seconds, nanos: 0 }.to_string()
}

fn library(name: &str) -> String {
    let found = LIBRARIES.iter().map(|place| format!("{place}/{name}")).find(|path| Path::new(path).exists());
    found.unwrap_or_else(|| {
        panic!("no {name} in {LIBRARIES:?}: run `tests/run`, which installs Debian's libfaketime")
    })
}

/// Seconds since 1970 of a timestamp such as `2027-01-01T00:00:20Z`.
fn seconds(moment: &str) -> f64 {
    let parts = || {
        let (date, time) = moment.strip_suffix('Z')?.split_once('T')?;
        let date: Vec<i64> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let time: Vec<f64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        Some((<[i64; 3]>::try_from(date).ok()?, <[f64; 3]>::try_from(time).ok()?))
    };
    let ([year, month, day], [hours, minutes, seconds]) = parts()
        .unwrap_or_else(|| panic!("expected a timestamp such as 2027-01-01T00:00:20Z, got {moment:?}"));
    #[expect(clippy::cast_precision_loss, reason = "days of this century")]
    let days = days(year, month, day) as f64;
    ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds
}

/// Days from 1970 to a Gregorian date. Years begin in March here, so that a leap day is the last day of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[test]
fn timestamps_are_parsed_as_date_parses_them() {
    for moment in [
        "1970-01-01T00:00:00Z",
        "2024-02-29T12:30:05Z",
        "2026-12-31T23:59:59Z",
        "2027-01-01T00:00:20Z",
        "2028-03-01T00:00:00Z",
    ] {
        let output =
            Command::new("date").args(["-u", "+%s", "-d", moment]).output().expect("cannot start date");
        let expected: f64 =
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("date did not print a number");
        assert!((seconds(moment) - expected).abs() < 1e-3, "{moment}");
    }
}

#[test]
fn an_ordinary_time_is_near() {
    for from in (0..3 * 365 * DAY).step_by(1009).map(|passed| passed + 20_700 * DAY) {
        let moment = ordinary(from);
        // A month and a year begin on one day once in six years.
        assert!((0..=31 * DAY).contains(&(moment - from)), "{from}: {moment}");
    }
}
