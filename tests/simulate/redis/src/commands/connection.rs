//! Commands on a connection: login, database, subscriptions, and the scripts that the server knows.

use super::{Outcome, SYNTAX};
use crate::{
    ConnectionId, Server,
    resp::{Reply, integer},
    scripts::Sha,
    state::DATABASES,
};

pub(super) fn ping(server: &mut Server, id: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    let text = match arguments {
        [] => None,
        [text] => Some(*text),
        _ => return Err("ERR wrong number of arguments for 'ping' command".to_owned()),
    };
    if server.state.borrow().subscriptions_of(id) > 0 {
        return Ok(Reply::Array(vec![Reply::text(b"pong"), Reply::text(text.unwrap_or_default())]));
    }
    Ok(text.map_or(Reply::Status("PONG"), Reply::text))
}

pub(super) fn echo(_: &mut Server, _: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::text(arguments[0]))
}

pub(super) fn auth(server: &mut Server, id: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    let (user, password) = match arguments {
        [password] => (&b"default"[..], *password),
        [user, password] => (*user, *password),
        _ => return Err(SYNTAX.to_owned()),
    };
    let Some((known, expected)) = &server.config.login else {
        if arguments.len() == 1 {
            return Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".to_owned());
        }
        return if user == b"default" { Ok(Reply::OK) } else { Err(WRONG_PASSWORD.to_owned()) };
    };
    if known.as_bytes() != user || expected.as_bytes() != password {
        return Err(WRONG_PASSWORD.to_owned());
    }
    server.connection(id).is_logged_in = true;
    Ok(Reply::OK)
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Only RESP version 2 without further arguments: the project sends no `HELLO`.
pub(super) fn hello(_: &mut Server, _: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    match arguments {
        [] | [b"2"] => {}
        _ => return Err("NOPROTO unsupported protocol version".to_owned()),
    }
    let text = |text: &[u8]| Reply::text(text);
    Ok(Reply::Array(vec![text(b"server"), text(b"redis"), text(b"proto"), Reply::Integer(2)]))
}

pub(super) fn client(_: &mut Server, _: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    match (&*arguments[0].to_ascii_uppercase(), &arguments[1..]) {
        (b"SETNAME", [_]) => Ok(Reply::OK),
        // `SETINFO` came with Redis 7.2.
        _ => Err(format!("ERR unknown subcommand '{}'. Try CLIENT HELP.", arguments[0].escape_ascii())),
    }
}

pub(super) fn select(server: &mut Server, id: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    let index = integer(arguments[0]).ok_or("ERR invalid DB index")?;
    if server.state.borrow().cluster.is_some() && index != 0 {
        return Err("ERR SELECT is not allowed in cluster mode".to_owned());
    }
    let database = usize::try_from(index).ok().filter(|database| *database < DATABASES);
    server.connection(id).database = database.ok_or("ERR DB index is out of range")?;
    Ok(Reply::OK)
}

pub(super) fn asking(server: &mut Server, id: ConnectionId, _: &[&[u8]]) -> Outcome {
    if server.state.borrow().cluster.is_none() {
        return Err("ERR This instance has cluster support disabled".to_owned());
    }
    server.connection(id).is_asking = true;
    Ok(Reply::OK)
}

pub(super) fn quit(server: &mut Server, id: ConnectionId, _: &[&[u8]]) -> Outcome {
    server.connection(id).is_closing = true;
    Ok(Reply::OK)
}

/// Nothing is ever watched.
pub(super) fn unwatch(_: &mut Server, _: ConnectionId, _: &[&[u8]]) -> Outcome {
    Ok(Reply::OK)
}

pub(super) fn subscribe(server: &mut Server, id: ConnectionId, channels: &[&[u8]]) -> Outcome {
    let (mut state, mut replies) = (server.state.borrow_mut(), Vec::new());
    for channel in channels {
        state.subscribe(id, channel);
        subscription(&mut replies, b"subscribe", channel, state.subscriptions_of(id));
    }
    Ok(Reply::Encoded(replies))
}

pub(super) fn unsubscribe(server: &mut Server, id: ConnectionId, channels: &[&[u8]]) -> Outcome {
    let (mut state, mut replies) = (server.state.borrow_mut(), Vec::new());
    let all = state.channels_of(id);
    let all: Vec<&[u8]> = all.iter().map(|channel| &**channel).collect();
    let channels = if channels.is_empty() { &all } else { channels };
    for channel in channels {
        state.unsubscribe(id, channel);
        subscription(&mut replies, b"unsubscribe", channel, state.subscriptions_of(id));
    }
    if channels.is_empty() {
        let reply = [Reply::text(b"unsubscribe"), Reply::Nil, Reply::Integer(0)];
        Reply::Array(reply.into()).write(&mut replies);
    }
    Ok(Reply::Encoded(replies))
}

fn subscription(replies: &mut Vec<u8>, kind: &[u8], channel: &[u8], count: usize) {
    Reply::Array(vec![Reply::text(kind), Reply::text(channel), Reply::count(count)]).write(replies);
}

pub(super) fn script(server: &mut Server, _: ConnectionId, arguments: &[&[u8]]) -> Outcome {
    match (&*arguments[0].to_ascii_uppercase(), &arguments[1..]) {
        (b"LOAD", [source]) => {
            let sha = Sha::of(source);
            server.scripts.load(sha, source)?;
            Ok(Reply::text(sha.as_bytes()))
        }
        (b"EXISTS", shas @ [_, ..]) => {
            let knows = |sha: &&[u8]| Sha::parse(sha).is_some_and(|sha| server.scripts.knows(sha));
            Ok(Reply::Array(shas.iter().map(|sha| Reply::Integer(knows(sha).into())).collect()))
        }
        (b"FLUSH", []) => {
            server.scripts.forget();
            Ok(Reply::OK)
        }
        _ => Err(format!("ERR unknown subcommand '{}'. Try SCRIPT HELP.", arguments[0].escape_ascii())),
    }
}
