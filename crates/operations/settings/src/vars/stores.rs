//! The rows of Redis, of AWS credentials for it, and of memcached.

use std::{path::PathBuf, time::Duration};

use http::Uri;

use super::{
    super::{
        parse::{self, at_least},
        reader::Reader,
        values::{self, RedisType, SocketType},
        variable::table,
    },
    Secrecy, Setting, Var,
};
use aws_iam::settings::Service;
use net::ServerAddress;

table! {
    STORES,
    /// A Redis: the first or the second one.
    pub(crate) RedisVars in "Redis" {
        REDIS_URL url: String = "", "Address of Redis: `host:port`, the path of a unix socket, or a URL \
            `redis://user:password@host:port/database`, `rediss://` for TLS. With `REDIS_TYPE=SENTINEL` \
            the master's name and the sentinels, `name,host:port,…`; with `CLUSTER` some of the nodes, \
            `host:port,…`.", login;
        REDIS_SOCKET_TYPE socket_type: Option<SocketType> = "", "`tcp` or `unix`; if unset, derived from \
            `REDIS_URL`. Sentinels and clusters always use TCP.";
        REDIS_TYPE kind: RedisType = "SINGLE", "`SINGLE`, `SENTINEL` or `CLUSTER`; case-insensitive.";
        REDIS_AUTH auth: String = "", "`password` or `user:password`; takes precedence over `REDIS_URL`.",
            secret;
        REDIS_AUTH_FILE auth_file: Option<PathBuf> = "", "File with one line, `password` or `user:password`, in place \
            of `REDIS_AUTH`. It is read for each connection and every two seconds.";
        REDIS_SENTINEL_AUTH sentinel_auth: String = "", "`REDIS_AUTH` for the sentinels.", secret;
        REDIS_SENTINEL_AUTH_FILE sentinel_auth_file: Option<PathBuf> = "", "`REDIS_AUTH_FILE` for the sentinels.";
        REDIS_AWS_IAM_AUTH iam: bool = "false", "Logs in to ElastiCache or MemoryDB with an AWS identity, in place of \
            `REDIS_AUTH`. Needs `REDIS_TLS`.";
        REDIS_AWS_IAM_CACHE_NAME iam_cache: String = "", "Name of the replication group, the serverless cache or the MemoryDB \
            cluster.";
        REDIS_AWS_IAM_USER_ID iam_user: String = "", "Id of the user, which equals its name.";
        REDIS_AWS_IAM_REGION iam_region: String = "", "Region of the cache; defaults to `AWS_REGION`, then \
            `AWS_DEFAULT_REGION`.";
        REDIS_AWS_IAM_SERVICE iam_service: Service = "elasticache", "`elasticache` or `memorydb`.";
        REDIS_AWS_IAM_SERVERLESS iam_serverless: bool = "false", "The cache is a serverless one of ElastiCache.";
        REDIS_TLS use_tls: bool = "false", "Enables TLS.";
        REDIS_TLS_CACERT: Option<PathBuf> = "", "PEM file of CAs; replaces the system's. This and the next \
            three apply to the second Redis too.";
        REDIS_TLS_CLIENT_CERT: Option<PathBuf> = "", "PEM file of the client certificate.";
        REDIS_TLS_CLIENT_KEY: Option<PathBuf> = "", "PEM file of its key.";
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: bool = "false", "Accepts a certificate for another host. Its \
            signature is still verified.";
        REDIS_TIMEOUT: Duration = "10ms", "Time limit of an operation; then `STORE_FAILURE_POLICY` \
            decides.";
        REDIS_CONNECT_TIMEOUT connect_timeout: Duration = "300ms" as parse::positive, "Time limit for \
            connecting, including TLS and authentication; for the second Redis too.";
        REDIS_POOL_SIZE connections: usize = "10" as values::redis_pool_size, "Maximum number of connections to \
            each server; `0` is 4, as in the Go service.";
        REDIS_MAX_QUEUED max_queued: usize = "8192" as at_least::<1>, "Maximum number of checks queued per \
            connection; more fail at once. For the second Redis too.";
        REDIS_PIPELINE_WINDOW pipeline_window: Duration = "0", "Time to gather checks before they are \
            sent. With `0` checks are sent at once, and gather only while a pipeline is in flight.";
        REDIS_HEALTH_CHECK_ACTIVE_CONNECTION unhealthy_without: bool = "false", "Unhealthy while a \
            master of Redis is not connected or refuses writes.";
        REDIS_STARTUP_INITIAL_INTERVAL startup_initial: Duration = "50ms", "Delay after the first failed \
            connection since the start. It doubles with each attempt.";
        REDIS_STARTUP_MAX_INTERVAL startup_max: Duration = "300ms", "Maximum delay.";
        REDIS_STARTUP_MAX_ELAPSED_TIME startup_give_up_after: Duration = "0", "Stops the service if Redis \
            was not reached in this time since the start; `0` retries forever.";
        REDIS_PIPELINE_LIMIT: () = "0" as parse::unused_integer, "No effect, as in the Go \
            service.";
        REDIS_CLUSTER_PIPELINE_PARALLELISM: () = "1" as parse::unused_count, "No effect: the \
            nodes of a cluster are always queried concurrently.";
        REDIS_POOL_ON_EMPTY_BEHAVIOR: String = "WAIT", "No effect: `REDIS_MAX_QUEUED` bounds the \
            queue.";
        REDIS_POOL_ON_EMPTY_WAIT_DURATION: String = "", "No effect: `REDIS_TIMEOUT` bounds the wait.";
    }
    /// The second Redis, whose variables `RedisVars` reads.
    pub(crate) SecondRedis in "A second Redis, for limits per second" {
        REDIS_PERSECOND is_on: bool = "false", "Counts limits with the unit `second` in a second Redis, \
            configured by the variables below.";
        REDIS_PERSECOND_URL: String = "", "Its `REDIS_URL`.", login;
        REDIS_PERSECOND_SOCKET_TYPE: String = "", "Its `REDIS_SOCKET_TYPE`.";
        REDIS_PERSECOND_TYPE: String = "SINGLE", "Its `REDIS_TYPE`.";
        REDIS_PERSECOND_AUTH: String = "", "Its `REDIS_AUTH`.", secret;
        REDIS_PERSECOND_AUTH_FILE: Option<PathBuf> = "", "Its `REDIS_AUTH_FILE`.";
        REDIS_PERSECOND_SENTINEL_AUTH: String = "", "Its `REDIS_SENTINEL_AUTH`.", secret;
        REDIS_PERSECOND_SENTINEL_AUTH_FILE: Option<PathBuf> = "", "Its `REDIS_SENTINEL_AUTH_FILE`.";
        REDIS_PERSECOND_AWS_IAM_AUTH: bool = "false", "Its `REDIS_AWS_IAM_AUTH`.";
        REDIS_PERSECOND_AWS_IAM_CACHE_NAME: String = "", "Its `REDIS_AWS_IAM_CACHE_NAME`.";
        REDIS_PERSECOND_AWS_IAM_USER_ID: String = "", "Its `REDIS_AWS_IAM_USER_ID`.";
        REDIS_PERSECOND_AWS_IAM_REGION: String = "", "Its `REDIS_AWS_IAM_REGION`.";
        REDIS_PERSECOND_AWS_IAM_SERVICE: String = "elasticache", "Its `REDIS_AWS_IAM_SERVICE`.";
        REDIS_PERSECOND_AWS_IAM_SERVERLESS: bool = "false", "Its `REDIS_AWS_IAM_SERVERLESS`.";
        REDIS_PERSECOND_TLS: bool = "false", "Its `REDIS_TLS`.";
        REDIS_PERSECOND_TIMEOUT: Duration = "10ms", "Its `REDIS_TIMEOUT`.";
        REDIS_PERSECOND_POOL_SIZE: String = "10", "Its `REDIS_POOL_SIZE`.";
        REDIS_PERSECOND_PIPELINE_WINDOW: Duration = "0", "Its `REDIS_PIPELINE_WINDOW`.";
        REDIS_PERSECOND_PIPELINE_LIMIT: String = "0", "No effect.";
        REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM: String = "1", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR: String = "WAIT", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION: String = "", "No effect.";
    }
    /// Read with `REDIS_AWS_IAM_AUTH` only. The names are those of AWS' SDKs.
    pub(crate) AwsVars in "AWS credentials" {
        AWS_REGION region: String = "", "Region. The variables of this group are read with `REDIS_AWS_IAM_AUTH` only.";
        AWS_DEFAULT_REGION default_region: String = "", "Region, if `AWS_REGION` is unset.";
        AWS_ACCESS_KEY_ID access_key: String = "", "Access key. If it is unset, the next variables that are set are the source \
            of credentials, and without any the instance metadata service.";
        AWS_SECRET_ACCESS_KEY secret_key: String = "", "Its secret.", secret;
        AWS_SESSION_TOKEN session_token: String = "", "Its session token, if it is temporary.", secret;
        AWS_WEB_IDENTITY_TOKEN_FILE web_identity: Option<PathBuf> = "", "File of a token for STS, as EKS sets it for a service \
            account with a role.";
        AWS_ROLE_ARN role: String = "", "Role of that token.";
        AWS_ROLE_SESSION_NAME role_session: String = "tollgate", "Name of its sessions.";
        AWS_ENDPOINT_URL_STS sts: Option<Uri> = "" as |text| parse::optional(text, values::http_url), "URL of STS; defaults to \
            that of the region.";
        AWS_CONTAINER_CREDENTIALS_FULL_URI container: Option<Uri> = "" as |text| parse::optional(text, values::http_url), "URL of \
            the agent that has the credentials of a container, as EKS Pod Identity sets it.";
        AWS_CONTAINER_CREDENTIALS_RELATIVE_URI container_path: String = "", "Its path at `http://169.254.170.2`, as ECS sets it.";
        AWS_CONTAINER_AUTHORIZATION_TOKEN container_token: String = "", "Header `Authorization` for the agent.", secret;
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE container_token_file: Option<PathBuf> = "", "File with that header; takes \
            precedence.";
        AWS_EC2_METADATA_DISABLED no_metadata: bool = "false", "Does not ask the instance metadata service.";
        AWS_EC2_METADATA_SERVICE_ENDPOINT metadata: Option<Uri> = "http://169.254.169.254" as |text| parse::optional(text, values::http_url), "URL \
            of the instance metadata service (IMDSv2).";
    }
    pub(crate) MemcachedVars in "Memcached" {
        MEMCACHE_HOST_PORT servers: Vec<ServerAddress> = "" as values::memcached_servers, "Servers, \
            `host:port,host:port,…`; the default port is 11211, and a path is a unix socket. Their order \
            determines which server has a key, as in the Go service.";
        MEMCACHE_SRV srv: Option<String> = "" as |text| parse::optional(text, values::memcached_srv), "DNS SRV record that lists the servers, \
            `_memcache._tcp.example.com`; replaces `MEMCACHE_HOST_PORT`.";
        MEMCACHE_SRV_REFRESH srv_refresh: Duration = "0", "Interval at which the SRV record is resolved \
            again; `0` is never after the first answer.";
        MEMCACHE_TLS use_tls: bool = "false", "Enables TLS.";
        MEMCACHE_TLS_CACERT: Option<PathBuf> = "", "PEM file of CAs; replaces the system's.";
        MEMCACHE_TLS_CLIENT_CERT: Option<PathBuf> = "", "PEM file of the client certificate.";
        MEMCACHE_TLS_CLIENT_KEY: Option<PathBuf> = "", "PEM file of its key.";
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION: bool = "false", "Accepts a certificate for another host. \
            Its signature is still verified.";
        MEMCACHE_TIMEOUT: Duration = "10ms", "Time limit of an operation; then \
            `STORE_FAILURE_POLICY` decides.";
        MEMCACHE_CONNECT_TIMEOUT connect_timeout: Duration = "300ms" as parse::positive, "Time limit \
            for connecting, including TLS.";
        MEMCACHE_MAX_QUEUED max_queued: usize = "8192" as at_least::<1>, "Maximum number of checks queued \
            per connection; more fail at once.";
        MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION unhealthy_without: bool = "false", "Unhealthy while there \
            is no connection to one of the servers.";
        MEMCACHE_MAX_IDLE_CONNS: () = "2" as parse::unused_integer, "No effect: each worker \
            thread keeps one connection to each server.";
    }
}
