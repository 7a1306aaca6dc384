//! A program that a test started: its log, its memory, and its exit. It is killed when dropped.

use std::{
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};

use super::{PATIENCE, clock, eventually, holds, within};

/// A running program.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs in the file `log`.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let out = File::create(log).expect("cannot create the log file");
        let err = out.try_clone().expect("cannot clone the log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// The output so far, for the message of a failed test. It cannot be searched: a thread of the service writes the log,
    /// so a line may be missing after everything else shows that it was logged.
    pub fn log(&self) -> LogSoFar {
        LogSoFar(self.output())
    }

    /// Waits until the output contains all of these.
    pub fn wait_for_log(&self, texts: &[&str]) {
        self.wait_until_log("the log has it", |log| {
            let missing: Vec<_> = texts.iter().filter(|text| !log.contains(**text)).collect();
            holds(missing.is_empty(), || format!("no {missing:?} in:\n{log}"))
        });
    }

    /// Waits until `found` accepts the output, and returns what it found.
    pub fn wait_until_log<T>(&self, what: &str, mut found: impl FnMut(&str) -> Result<T, String>) -> T {
        eventually(what, || found(&self.output()))
    }

    /// Stops the program unless it has exited, and returns all of its output: only then no line can follow. Connections
    /// that the test keeps open delay the exit.
    pub fn final_log(&mut self) -> String {
        if self.exited().is_none() {
            let status = self.stop();
            assert!(status.success(), "{status}\n{}", self.log());
        }
        self.output()
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The exit status, if it has exited.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("cannot wait for the process")
    }

    /// Waits for the exit.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        within(limit, || self.exited().ok_or_else(String::new)).ok()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        // The shell's `kill` exists on every machine and needs no unsafe code.
        let sent = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &self.child.id().to_string()])
            .status()
            .expect("cannot start sh");
        assert!(sent.success(), "cannot send SIG{name}");
    }

    /// Stops it as an orchestrator would: SIGTERM, and SIGKILL after [`PATIENCE`].
    pub fn stop(&mut self) -> ExitStatus {
        if let Some(status) = self.exited() {
            return status;
        }
        self.signal("TERM");
        self.wait(PATIENCE).unwrap_or_else(|| self.kill())
    }

    /// Kills it.
    pub fn kill(&mut self) -> ExitStatus {
        // It may have exited already.
        let _ = self.child.kill();
        self.child.wait().expect("cannot wait for the process")
    }

    /// Its resident memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Its resident memory that no file backs, in KiB.
    pub fn anonymous_kib(&self) -> u64 {
        self.memory("RssAnon:")
    }

    /// Its peak resident memory, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Resets the peak.
    pub fn reset_peak(&self) {
        let path = format!("/proc/{}/clear_refs", self.child.id());
        fs::write(&path, "5").unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Its CPU time so far, in steps of 10 ms.
    pub fn cpu_time(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        // The name in parentheses may contain spaces; user and system time are the 12th and 13th field after it.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
        let times = fields.expect("no name in /proc/PID/stat").skip(11).take(2);
        // A clock tick is 10 ms on all Linux machines.
        times.map(|ticks| Duration::from_millis(10 * ticks.parse::<u64>().expect("not a number"))).sum()
    }

    /// The first word of a line of `/proc/PID/status`, if the kernel has this line.
    pub fn status(&self, name: &str) -> Option<String> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    }

    fn memory(&self, name: &str) -> u64 {
        let number = self.status(name).and_then(|text| text.parse().ok());
        number.expect("no memory in /proc/PID/status")
    }
}

/// The output of a program that still runs.
pub struct LogSoFar(String);

impl fmt::Display for LogSoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            self.kill();
        }
        clock::clean_up_after(self.child.id());
    }
}

/// Standard output and standard error.
pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Asserts the exit code and texts in the output of a command.
#[track_caller]
pub fn assert_exit(output: &Output, code: i32, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{}", printed(output));
    for text in texts {
        assert!(printed(output).contains(text), "no {text:?} in\n{}", printed(output));
    }
}
