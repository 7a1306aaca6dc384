//! One core for the services and another for the client, so that neither waits for the other.

use std::fmt;

use super::Result;

/// The numbers of two cores; equal if there is only one.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    services: usize,
    load: usize,
}

impl Cores {
    /// The first and the last that this process may use.
    #[cfg(target_os = "linux")]
    pub(crate) fn allowed() -> Result<Self> {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
        let services = allowed.next().ok_or("this process may use no core")?;
        Ok(Self { services, load: allowed.next_back().unwrap_or(services) })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn allowed() -> Result<Self> {
        Err("what a service uses is read from /proc, as Linux has it".into())
    }

    /// Runs this on the services' core, on which child processes stay; this thread returns to its own.
    pub(crate) fn as_service<T>(self, start: impl FnOnce() -> T) -> Result<T> {
        stay_on(self.services)?;
        let started = start();
        stay_on(self.load)?;
        Ok(started)
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { services, load } = self;
        if services == load {
            return write!(f, "services and load share core {load}");
        }
        write!(f, "services on core {services}, load on core {load}")
    }
}

#[cfg(target_os = "linux")]
fn stay_on(core: usize) -> Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_core: usize) -> Result<()> {
    Ok(())
}
