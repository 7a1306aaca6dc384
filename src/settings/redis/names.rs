//! The variables of one Redis, so that both are read by the same code.

use super::super::vars::{self, Var};

/// The variables of one Redis.
pub(super) struct Names {
    pub(super) url: Var,
    pub(super) socket_type: Var,
    pub(super) kind: Var,
    pub(super) auth: Var,
    pub(super) sentinel_auth: Var,
    pub(super) tls: Var,
    pub(super) timeout: Var,
    pub(super) pool_size: Var,
    pub(super) window: Var,
    pub(super) limit: Var,
    pub(super) parallelism: Var,
    pub(super) on_empty: Var,
    pub(super) on_empty_wait: Var,
    /// What the URL is when it is not set, in the Go service.
    pub(super) usual_path: &'static str,
}

pub(super) const MAIN: Names = Names {
    url: vars::REDIS_URL,
    socket_type: vars::REDIS_SOCKET_TYPE,
    kind: vars::REDIS_TYPE,
    auth: vars::REDIS_AUTH,
    sentinel_auth: vars::REDIS_SENTINEL_AUTH,
    tls: vars::REDIS_TLS,
    timeout: vars::REDIS_TIMEOUT,
    pool_size: vars::REDIS_POOL_SIZE,
    window: vars::REDIS_PIPELINE_WINDOW,
    limit: vars::REDIS_PIPELINE_LIMIT,
    parallelism: vars::REDIS_CLUSTER_PIPELINE_PARALLELISM,
    on_empty: vars::REDIS_POOL_ON_EMPTY_BEHAVIOR,
    on_empty_wait: vars::REDIS_POOL_ON_EMPTY_WAIT_DURATION,
    usual_path: "/var/run/nutcracker/ratelimit.sock",
};

pub(super) const PER_SECOND: Names = Names {
    url: vars::REDIS_PERSECOND_URL,
    socket_type: vars::REDIS_PERSECOND_SOCKET_TYPE,
    kind: vars::REDIS_PERSECOND_TYPE,
    auth: vars::REDIS_PERSECOND_AUTH,
    sentinel_auth: vars::REDIS_PERSECOND_SENTINEL_AUTH,
    tls: vars::REDIS_PERSECOND_TLS,
    timeout: vars::REDIS_PERSECOND_TIMEOUT,
    pool_size: vars::REDIS_PERSECOND_POOL_SIZE,
    window: vars::REDIS_PERSECOND_PIPELINE_WINDOW,
    limit: vars::REDIS_PERSECOND_PIPELINE_LIMIT,
    parallelism: vars::REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM,
    on_empty: vars::REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR,
    on_empty_wait: vars::REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION,
    usual_path: "/var/run/nutcracker/ratelimitpersecond.sock",
};
