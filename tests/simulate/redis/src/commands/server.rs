//! Commands about the server, its role, its cluster, and messages.

use super::Outcome;
use crate::{Role, resp::Reply, state::State};

pub(super) fn time(state: &mut State, _: &[&[u8]]) -> Outcome {
    let number = |number: u64| Reply::text(itoa::Buffer::new().format(number).as_bytes());
    Ok(Reply::Array(vec![number(state.now / 1_000_000), number(state.now % 1_000_000)]))
}

pub(super) fn dbsize(state: &mut State, _: &[&[u8]]) -> Outcome {
    Ok(Reply::count(state.database().len()))
}

pub(super) fn flushall(state: &mut State, _: &[&[u8]]) -> Outcome {
    state.clear();
    Ok(Reply::OK)
}

pub(super) fn role(state: &mut State, _: &[&[u8]]) -> Outcome {
    let text = |text: &str| Reply::text(text.as_bytes());
    Ok(Reply::Array(match &state.role {
        Role::Master => vec![text("master"), Reply::Integer(0), Reply::Array(Vec::new())],
        Role::Replica { of } => {
            let port = Reply::Integer(of.port.into());
            vec![text("slave"), text(&of.host), port, text("connected"), Reply::Integer(0)]
        }
        Role::Sentinel { masters } => {
            let names = masters.keys().map(|name| text(name)).collect();
            vec![text("sentinel"), Reply::Array(names)]
        }
    }))
}

pub(super) fn info(state: &mut State, _: &[&[u8]]) -> Outcome {
    let role = match state.role {
        Role::Replica { .. } => "slave",
        Role::Master | Role::Sentinel { .. } => "master",
    };
    let keys = state.keys();
    Ok(Reply::Bulk(format!("redis_version:7.0.15\r\nrole:{role}\r\nsimulated_keys:{keys}\r\n").into_bytes()))
}

pub(super) fn publish(state: &mut State, arguments: &[&[u8]]) -> Outcome {
    Ok(Reply::count(state.publish(arguments[0], arguments[1])))
}

pub(super) fn cluster(state: &mut State, arguments: &[&[u8]]) -> Outcome {
    let Some(cluster) = &state.cluster else {
        return Err("ERR This instance has cluster support disabled".to_owned());
    };
    match (&*arguments[0].to_ascii_uppercase(), &arguments[1..]) {
        (b"SLOTS", []) => Ok(cluster.slots()),
        (b"KEYSLOT", [key]) => Ok(Reply::Integer(crate::cluster::slot(key).into())),
        (b"MYID", []) => Ok(Reply::text(cluster.id().as_bytes())),
        _ => Err(format!("ERR unknown subcommand '{}'. Try CLUSTER HELP.", arguments[0].escape_ascii())),
    }
}

pub(super) fn sentinel(state: &mut State, arguments: &[&[u8]]) -> Outcome {
    let Role::Sentinel { masters } = &state.role else {
        return Err("ERR unknown command 'SENTINEL', with args beginning with: ".to_owned());
    };
    match arguments {
        [command, name] if command.eq_ignore_ascii_case(b"get-master-addr-by-name") => {
            let master = std::str::from_utf8(name).ok().and_then(|name| masters.get(name));
            Ok(master.map_or(Reply::Nil, |master| {
                Reply::Array(vec![
                    Reply::text(master.host.as_bytes()),
                    Reply::Bulk(master.port.to_string().into_bytes()),
                ])
            }))
        }
        _ => Err(format!("ERR unknown subcommand '{}'. Try SENTINEL HELP.", arguments[0].escape_ascii())),
    }
}
