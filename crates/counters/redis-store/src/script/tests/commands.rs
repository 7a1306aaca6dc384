//! The command pool on a real Redis.

use std::{sync::Arc, time::Duration};

use deadpool_redis::redis::{cmd, pipe};

use super::server::Redis;
use crate::{
    command_pool::CommandPool,
    dialer::Dialer,
    script::Script,
    settings::{RedisPool, RedisServers},
    topology::Topology,
};
use net::{ServerAddress, edges::Edges};

static PAIR: Script = Script::new("return { redis.call('GET', KEYS[1]), ARGV[1] }");

fn command_pool(redis: &Redis) -> CommandPool {
    let settings = RedisPool {
        servers: RedisServers::Single(ServerAddress::Unix(redis.socket())),
        credentials: None,
        database: 0,
        tls: None,
        connections: 1,
        timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        pipeline_window: Duration::ZERO,
        max_queued: 1,
    };
    let edges = Edges::system();
    let dialer = Dialer::new(&settings, &edges).unwrap();
    let topology = Topology::new(&settings, &dialer, &Arc::default(), &edges).unwrap();
    CommandPool::new(dialer, &topology, "p:", &edges)
}

#[tokio::test]
async fn commands_pipelines_and_scripts_have_values_and_errors() {
    let redis = Redis::start();
    let pool = command_pool(&redis);
    let key = pool.key("k");
    assert_eq!(pool.command::<Option<String>>(&key, cmd("GET").arg(&key)).await, Ok(None));

    let mut commands = pipe();
    commands.cmd("SET").arg(&key).arg("v").ignore().cmd("GET").arg(&key).cmd("STRLEN").arg(&key);
    assert_eq!(pool.pipeline::<(String, u64)>(&key, &commands).await, Ok(("v".to_owned(), 1)));
    commands.cmd("LPUSH").arg(&key).arg("x");
    let error = pool.pipeline::<()>(&key, &commands).await.unwrap_err();
    assert!(error.contains("WRONGTYPE"), "{error}");

    for _ in 0..2 {
        // At first the server does not know it.
        let pair = pool.script::<(String, String)>(&key, &PAIR, &[&key], &["a".to_owned()]).await;
        assert_eq!(pair, Ok(("v".to_owned(), "a".to_owned())));
    }
    let error = pool.command::<()>(&key, cmd("NOSUCH").arg("secret")).await.unwrap_err();
    assert!(error.contains("unknown command") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_reply_whose_caller_has_left_is_not_the_next_callers() {
    let redis = Redis::start();
    let pool = command_pool(&redis);
    let key = pool.key("k");
    let mut waits = cmd("BLPOP");
    waits.arg(&key).arg(0.3);
    let waiting = pool.command::<Option<String>>(&key, &waits);
    tokio::time::timeout(Duration::from_millis(50), waiting).await.unwrap_err();
    assert_eq!(pool.command::<u64>(&key, cmd("STRLEN").arg(&key)).await, Ok(0));
}
