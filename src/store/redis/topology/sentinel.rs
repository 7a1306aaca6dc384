//! The command for sentinels, and its reply.

use deadpool_redis::redis::{Cmd, FromRedisValue, Value, cmd};

use crate::settings::{HostPort, redis::RedisAddress};

/// The command for the master with this name.
pub(super) fn command(master: &str) -> Cmd {
    let mut command = cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(master);
    command
}

/// Reads the reply.
///
/// # Errors
/// When it does not contain the master.
pub(super) fn read(reply: &Value, master: &str) -> Result<RedisAddress, String> {
    if *reply == Value::Nil {
        return Err(format!("no master named {master:?}; see the first part of REDIS_URL"));
    }
    let address = <(String, i64)>::from_redis_value_ref(reply).ok();
    match address.map(|(host, port)| (host, u16::try_from(port))) {
        Some((host, Ok(port))) if !host.is_empty() => Ok(RedisAddress::Tcp(HostPort { host, port })),
        _ => Err(format!("unexpected reply instead of the address of {master:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn the_master_is_read() {
        for (host, shown) in
            [("10.0.0.1", "10.0.0.1:6379"), ("fd00::1", "[fd00::1]:6379"), ("redis-0.r", "redis-0.r:6379")]
        {
            let answer = Value::Array(vec![text(host), text("6379")]);
            assert_eq!(read(&answer, "m").unwrap().to_string(), shown);
        }
    }

    #[test]
    fn other_answers_say_what_they_lack() {
        let unknown = read(&Value::Nil, "mymaster").unwrap_err();
        assert!(unknown.contains("\"mymaster\"") && unknown.contains("REDIS_URL"), "{unknown}");
        for answer in [
            Value::Okay,
            Value::Int(1),
            Value::Array(Vec::new()),
            Value::Array(vec![text(""), text("6379")]),
            Value::Array(vec![text("a"), text("99999")]),
            Value::Array(vec![text("a"), Value::Int(-1)]),
            Value::Array(vec![text("a"), text("6379"), text("b")]),
        ] {
            assert!(read(&answer, "m").is_err(), "{answer:?}");
        }
    }
}
