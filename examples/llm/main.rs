//! The parts of the gateway in `examples/llm/run` that are neither Envoy nor Tollgate: the model, its callers, and a table of
//! what was spent.
//!
//! ```text
//! llm model PORT
//! llm callers GATEWAY ADMIN
//! ```

mod callers;
mod model;
mod spending;
mod table;

use std::{env, io, net::TcpListener, process::ExitCode, thread};

use callers::{Call, Leaves, Seen};

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ports: Vec<u16> = arguments.iter().skip(1).filter_map(|port| port.parse().ok()).collect();
    match (arguments.first().map(String::as_str), &ports[..]) {
        (Some("model"), [port]) => model::serve(&TcpListener::bind(("127.0.0.1", *port))?),
        (Some("callers"), [gateway, admin]) => call_all(*gateway, *admin)?,
        _ => {
            eprintln!("usage: llm model PORT | llm callers GATEWAY ADMIN");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

const TEAMS: [&str; 2] = ["red", "blue"];
const KEYS: [&str; 4] = ["red-1", "red-2", "blue-1", "blue-2"];

/// Callers of each key, of whom ten are admitted at a time, and calls of each.
const CALLERS: u64 = 12;
const CALLS: u64 = 4;

/// Calls the model with all keys at once, and prints what was spent.
fn call_all(gateway: u16, admin: u16) -> io::Result<()> {
    let callers = TEAMS
        .iter()
        .flat_map(|team| KEYS.iter().filter(|key| key.starts_with(*team)).map(move |key| (*team, *key)));
    let callers = callers.flat_map(|of| (0..CALLERS).map(move |number| (of, number)));
    let callers = callers.map(|((team, key), number)| {
        let calls = (0..CALLS).map(move |round| planned(team, key, number + round));
        thread::spawn(move || calls.map(|call| callers::call(gateway, &call)).collect::<Vec<_>>())
    });
    let callers: Vec<_> = callers.collect();
    let (mut streams, mut limited, mut others) = (0, 0, 0);
    for caller in callers {
        for seen in caller.join().map_err(|_| io::Error::other("a caller panicked"))? {
            match seen? {
                Seen::Stream { .. } => streams += 1,
                Seen::Status(429) => limited += 1,
                Seen::Status(_) | Seen::Left => others += 1,
            }
        }
    }
    println!("{streams} streams, {limited} times 429, {others} errors and callers who left");
    table::print(admin, &TEAMS, &KEYS)
}

/// Answers have different lengths; some fail, and some callers leave.
fn planned(team: &str, key: &str, number: u64) -> Call {
    let leaves = match number % 12 {
        3 => Leaves::Before,
        6 => Leaves::During,
        9 => Leaves::AfterTheUsage,
        _ => Leaves::AtTheEnd,
    };
    let model = if number % 11 == 5 { "broken" } else { "small" };
    let (team, key) = (team.to_owned(), key.to_owned());
    Call { team, key, model, max_tokens: 400, seed: number * 7919, leaves }
}
