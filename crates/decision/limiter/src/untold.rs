//! The refunded counters that other replicas have not been told of yet.

use std::{collections::HashSet, mem, sync::Mutex, time::Duration};

use clock::timer::Timer;
use counters::Resets;
use faults::{log_throttle::FailureLog, mutex::lock};
use tokio::sync::Notify;
use tracing::{info, warn};

/// A larger backlog is announced as "any counter": the other replicas then drop their whole caches.
const MAX_NAMES: usize = 10_000;

/// Refunds within this time share a message. With more than a few replicas the pause grows with their number, because
/// every replica receives the messages of every other.
const PAUSE: Duration = Duration::from_millis(50);
const FEW_REPLICAS: u64 = 10;

/// The pause after a message that empties all caches, and after a failed one.
const LONG_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Untold {
    names: Mutex<Names>,
    added: Notify,
}

#[derive(Default)]
struct Names {
    full_keys: HashSet<Box<str>>,
    /// There were too many, or a counter whose name is unknown.
    any: bool,
}

impl Names {
    fn add(&mut self, name: Option<&str>) {
        match name {
            _ if self.any => {}
            Some(name) if self.full_keys.contains(name) => {}
            Some(name) if self.full_keys.len() < MAX_NAMES => {
                self.full_keys.insert(name.into());
            }
            _ => *self = Self { full_keys: HashSet::new(), any: true },
        }
    }
}

impl Untold {
    /// Adds a refunded counter; `None` if its name is unknown.
    pub fn add(&self, full_key: Option<&str>) {
        lock(&self.names).add(full_key);
        self.added.notify_one();
    }

    /// Announces refunds by `tell`, which returns how many replicas it reached. A failed message is sent again. Never returns.
    pub async fn tell(&self, timer: &dyn Timer, tell: impl AsyncFn(&Resets) -> Result<u64, String>) {
        let log = FailureLog::default();
        let mut factor = 1;
        loop {
            self.added.notified().await;
            let Some(told) = self.take() else { continue };
            let mut pause = PAUSE * factor;
            if told == Resets::Unknown {
                pause = LONG_PAUSE;
            }
            match tell(&told).await {
                Ok(replicas) => {
                    log.succeeded(|suppressed| info!(suppressed, "refunds are announced again"));
                    factor = u32::try_from(replicas.clamp(FEW_REPLICAS, 1000) / FEW_REPLICAS).unwrap_or(1);
                }
                Err(error) => {
                    self.keep(told);
                    pause = LONG_PAUSE;
                    log.failed(|suppressed| {
                        warn!(
                            suppressed,
                            "cannot announce refunds, retrying: {error}; other replicas may refuse until then"
                        );
                    });
                }
            }
            timer.sleep(pause).await;
        }
    }

    fn take(&self) -> Option<Resets> {
        match mem::take(&mut *lock(&self.names)) {
            Names { any: true, .. } => Some(Resets::Unknown),
            Names { full_keys, .. } if full_keys.is_empty() => None,
            Names { full_keys, .. } => Some(Resets::Of(full_keys.into_iter().map(String::from).collect())),
        }
    }

    fn keep(&self, untold: Resets) {
        let mut names = lock(&self.names);
        match untold {
            Resets::Of(all) => all.iter().for_each(|name| names.add(Some(name))),
            Resets::Unknown => names.add(None),
        }
        drop(names);
        self.added.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn names(untold: &Untold) -> Option<Vec<String>> {
        match untold.take() {
            Some(Resets::Of(mut all)) => {
                all.sort();
                Some(all)
            }
            Some(Resets::Unknown) => None,
            None => Some(Vec::new()),
        }
    }

    #[test]
    fn nothing_is_lost_by_a_failure_or_a_flood() {
        let untold = Untold::default();
        untold.add(Some("a"));
        untold.add(Some("b"));
        untold.add(Some("a"));
        let told = untold.take().unwrap();
        untold.add(Some("c"));
        untold.keep(told);
        assert_eq!(names(&untold), Some(["a", "b", "c"].map(str::to_owned).into()), "each once");
        for name in 0..MAX_NAMES {
            untold.add(Some(&name.to_string()));
        }
        untold.add(Some("0"));
        assert_eq!(names(&untold).map(|all| all.len()), Some(MAX_NAMES));
        for name in 0..=MAX_NAMES {
            untold.add(Some(&name.to_string()));
        }
        let told = untold.take().unwrap();
        assert_eq!(told, Resets::Unknown);
        untold.add(Some("a"));
        untold.keep(told);
        untold.add(Some("b"));
        assert_eq!(names(&untold), None, "any is more than some");
        assert_eq!(names(&untold), Some(Vec::new()));
    }

    /// Tells until as many names have arrived; returns the number of messages.
    async fn messages(
        untold: &Untold,
        names: usize,
        reached: impl Fn(usize) -> Result<u64, String>,
    ) -> usize {
        let timer = net::edges::Edges::system().timer;
        let (calls, told) = (Cell::new(0), RefCell::new(HashSet::new()));
        let add = async {
            for name in 0..names {
                untold.add(Some(&name.to_string()));
                timer.sleep(Duration::from_millis(10)).await;
            }
            while told.borrow().len() < names {
                timer.sleep(Duration::from_millis(10)).await;
            }
        };
        let tell = untold.tell(&*timer, async |refunds| {
            assert_ne!(*refunds, Resets::Of(Vec::new()), "there is something to tell");
            calls.set(calls.get() + 1);
            let replicas = reached(calls.get())?;
            let Resets::Of(names) = refunds else { panic!("they are few") };
            told.borrow_mut().extend(names.iter().cloned());
            Ok(replicas)
        });
        tokio::select! {
            () = add => calls.get(),
            () = tell => unreachable!("it never returns"),
        }
    }

    #[tokio::test]
    async fn messages_that_reach_many_replicas_are_fewer() {
        let untold = Untold::default();
        let [few, many] = [messages(&untold, 60, |_| Ok(3)).await, messages(&untold, 60, |_| Ok(100)).await];
        assert!(many * 2 < few, "{few} messages to few replicas, {many} to many");
    }

    #[tokio::test]
    async fn what_was_not_sent_is_told_later() {
        let fails_once = |call| if call == 1 { Err("as a test wants it".to_owned()) } else { Ok(1) };
        assert_eq!(messages(&Untold::default(), 3, fails_once).await, 2);
    }
}
