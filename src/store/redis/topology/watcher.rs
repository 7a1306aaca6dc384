//! The task that asks who owns the keys, again and again, and publishes what it hears.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use deadpool_redis::redis::{Cmd, Value};
use tokio::time::{sleep, timeout};
use tracing::error;

use super::{
    Known, Servers, cluster,
    node_list::{Connector, NodeList},
    sentinel,
};
use crate::{
    panics::{self, Boundary, Panicked, caught},
    settings::{HostPort, redis::RedisAddress},
};

/// Doubts are looked into so often at most: a storm of them must not become one of questions.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// How often sentinels are asked: a master that is one no more may not tell us.
const SENTINEL_PAUSE: Duration = Duration::from_secs(1);

/// How often a cluster is asked: slots that move announce themselves by `MOVED`.
const CLUSTER_PAUSE: Duration = Duration::from_secs(5);

/// What is asked, and how the answer is understood.
pub(super) enum Source {
    Sentinel { master: String },
    Cluster { seeds: Vec<HostPort> },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sentinel { master } => write!(f, "redis master {master:?}"),
            Self::Cluster { .. } => f.write_str("redis cluster"),
        }
    }
}

impl Source {
    fn question(&self) -> Cmd {
        match self {
            Self::Sentinel { master } => sentinel::question(master),
            Self::Cluster { .. } => cluster::question(),
        }
    }

    fn read(&self, answer: &Value, asked: &HostPort) -> Result<Servers, String> {
        match self {
            Self::Sentinel { master } => sentinel::read(answer, master).map(Servers::only),
            Self::Cluster { .. } => cluster::read(answer, asked),
        }
    }

    fn pause(&self) -> Duration {
        match self {
            Self::Sentinel { .. } => SENTINEL_PAUSE,
            Self::Cluster { .. } => CLUSTER_PAUSE,
        }
    }
}

/// Asks, again and again.
pub(super) struct Watcher {
    source: Source,
    circle: NodeList,
}

impl Watcher {
    pub(super) fn new(source: Source, connector: Connector, addresses: &[HostPort]) -> Self {
        Self { source, circle: NodeList::new(connector, addresses) }
    }

    pub(super) async fn watch(mut self, known: Arc<Known>) {
        while let Err(Panicked) = caught(Boundary::StoreDiscovery, self.watch_until_panic(&known)).await {
            panics::pause().await;
        }
    }

    async fn watch_until_panic(&mut self, known: &Known) {
        let question = self.source.question();
        let (mut doubted, mut lost) = (false, false);
        loop {
            panics::point("store_discovery");
            let source = &self.source;
            let told = self.circle.ask(&question, |answer, asked| source.read(answer, asked), doubted).await;
            if told.is_none() && !lost {
                error!("{source}: nobody tells where it is now; last known: {}", known.servers.load());
            }
            lost = told.is_none();
            let pause = if lost { SENTINEL_PAUSE } else { source.pause() };
            if let Some(servers) = told
                && known.publish(source, servers.clone())
            {
                self.meet(&servers);
            }
            doubted = pause_unless_doubted(known, pause).await;
        }
    }

    /// Masters of a cluster tell of it as well as those that were named in the settings, and may be there
    /// longer.
    fn meet(&mut self, servers: &Servers) {
        let Source::Cluster { seeds } = &self.source else { return };
        let masters = servers.masters.iter().filter_map(|master| match master {
            RedisAddress::Tcp(address) => Some(address),
            RedisAddress::Unix(_) => None,
        });
        self.circle.meet(masters.chain(seeds));
    }
}

/// Waits for the next look, and says whether it is because of a doubt.
async fn pause_unless_doubted(known: &Known, pause: Duration) -> bool {
    sleep(LEAST_PAUSE).await;
    timeout(jittered(pause.saturating_sub(LEAST_PAUSE)), known.doubt.notified()).await.is_ok()
}

/// ±10 %, so that processes which began together do not ask together for ever.
pub(super) fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(pause) % 201;
    #[expect(clippy::cast_precision_loss, reason = "the number is at most 200")]
    pause.mul_f64(0.9 + random as f64 / 1000.0)
}
