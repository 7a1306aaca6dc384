//! Commands to Redis apart from counting: overrides, resets of counters, and the list of replicas.
//!
//! They go through `deadpool-redis`, over connections of their own, so that a large or slow one delays no request. The
//! connections belong to the runtime that opens them: each thread makes a [`Side`] of its own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use deadpool_redis::{
    Connection, Pool as Connections, PoolError,
    redis::{Cmd, FromRedisValue, Pipeline, RedisError, ScriptInvocation, aio::PubSub},
};
use tokio::time::timeout;

use super::topology::{Connector, Topology};
use crate::{
    mutex::lock,
    settings::redis::{RedisAddress, RedisPool},
};

/// Connections to one server at a time. A command waits for its reply on one, so that one that is slow does not hold up
/// all others.
const CONNECTIONS: usize = 2;

/// How long a command may take. Some handle thousands of keys.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to one Redis for everything but counting.
pub struct Side {
    topology: Topology,
    connector: Arc<Connector>,
    database: u32,
    prefix: Box<str>,
    servers: Mutex<Vec<(RedisAddress, Connections)>>,
}

impl Side {
    pub(super) fn new(pool: &RedisPool, topology: &Topology, prefix: &str) -> Result<Self, Vec<String>> {
        Ok(Self {
            topology: topology.clone(),
            connector: Arc::new(Connector::of_servers(pool, TIMEOUT)?),
            database: pool.database,
            prefix: prefix.into(),
            servers: Mutex::default(),
        })
    }

    /// The name of a key that is not a counter. All of them are on one server of a cluster.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}{{tollgate}}:{name}", self.prefix)
    }

    /// Runs a command on the server that owns `key`.
    ///
    /// # Errors
    /// When the server is not reached or refuses the command: the address, and what to do.
    pub async fn command<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let done = command.query_async(&mut *connection).await;
        self.finish(&address, connection, done)
    }

    /// Runs commands in one pipeline on the server that owns `key`.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub async fn pipeline<T: FromRedisValue>(&self, key: &str, commands: &Pipeline) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let done = commands.query_async(&mut *connection).await;
        self.finish(&address, connection, done)
    }

    /// Runs a script on the server that owns `key`.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub async fn script<T: FromRedisValue>(
        &self,
        key: &str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, String> {
        let (address, mut connection) = self.connection(key).await?;
        let done = script.invoke_async(&mut *connection).await;
        self.finish(&address, connection, done)
    }

    /// Subscribes to a channel, on the server that owns a key of this name.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub async fn subscribe(&self, channel: &str) -> Result<PubSub, String> {
        let address = self.owner(channel)?;
        let client = self.connector.client(&address, self.database)?;
        let subscribed = timeout(TIMEOUT, async {
            let mut messages = client.get_async_pubsub().await?;
            messages.subscribe(channel).await?;
            Ok(messages)
        });
        match subscribed.await {
            Ok(Ok(messages)) => Ok(messages),
            Ok(Err(error)) => Err(self.explain(&address, &error)),
            Err(_) => Err(format!("redis {address}: no reply within {TIMEOUT:?}")),
        }
    }

    async fn connection(&self, key: &str) -> Result<(RedisAddress, Connection), String> {
        let address = self.owner(key)?;
        let pool = self.pool(&address)?;
        match timeout(TIMEOUT, pool.get()).await {
            Ok(Ok(connection)) => Ok((address, connection)),
            Ok(Err(PoolError::Backend(error))) => {
                self.topology.request_refresh();
                Err(self.explain(&address, &error))
            }
            Ok(Err(error)) => Err(format!("redis {address}: {error}")),
            Err(_) => Err(format!("redis {address}: no connection within {TIMEOUT:?}")),
        }
    }

    /// The result of a command. A connection that broke is not used again.
    fn finish<T>(
        &self,
        address: &RedisAddress,
        connection: Connection,
        done: Result<T, RedisError>,
    ) -> Result<T, String> {
        done.map_err(|error| {
            if error.is_io_error() || error.is_connection_dropped() || error.is_timeout() {
                drop(Connection::take(connection));
            }
            // A master may have become a replica, and slots may have moved.
            self.topology.request_refresh();
            self.explain(address, &error)
        })
    }

    fn explain(&self, address: &RedisAddress, error: &RedisError) -> String {
        format!("redis {address}: {}", self.connector.explain(error))
    }

    fn owner(&self, key: &str) -> Result<RedisAddress, String> {
        let servers = self.topology.servers();
        let owner = servers.owner(key.as_bytes()).and_then(|owner| servers.masters.get(owner));
        owner.cloned().ok_or_else(|| {
            self.topology.request_refresh();
            "redis: no known master owns the key".to_owned()
        })
    }

    fn pool(&self, address: &RedisAddress) -> Result<Connections, String> {
        let mut servers = lock(&self.servers);
        if let Some((_, pool)) = servers.iter().find(|(known, _)| known == address) {
            return Ok(pool.clone());
        }
        // Servers that are masters no more are forgotten, so that they do not gather.
        let current = self.topology.servers();
        servers.retain(|(known, _)| current.masters.contains(known));
        let pool = self.connector.pool(address, self.database, CONNECTIONS)?;
        servers.push((address.clone(), pool.clone()));
        Ok(pool)
    }
}
