//! Servers with `INCREX`. None can be installed here, so a fake follows the command's documentation.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::support::{fake::Fake, redis};

use super::{admitted, hits, leased, metric};

const RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: year, requests_per_unit: 700}
";

/// The commands of leases that the server received, and its counters.
#[derive(Default)]
struct Played {
    counters: BTreeMap<String, i64>,
    asked: Vec<String>,
}

impl Played {
    fn answer(&mut self, words: &[String], knows_increx: bool) -> String {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let bad = "-ERR value is not an integer or out of range\r\n".to_owned();
        match words.as_slice() {
            ["INCREX", ..] if !knows_increx => "-ERR unknown command 'INCREX', with args\r\n".to_owned(),
            ["INCREX", key, "BYINT", hits, "UBOUND", limit, "EX", seconds, "ENX"] => {
                self.asked.push(words.join(" "));
                let (hits, limit) = (hits.parse::<i64>().unwrap(), limit.parse::<i64>().unwrap());
                assert!(seconds.parse::<u64>().unwrap() >= super::YEAR);
                let counter = self.counters.entry((*key).to_owned()).or_default();
                let added = if *counter + hits <= limit { hits } else { 0 };
                *counter += added;
                format!("*2\r\n:{counter}\r\n:{added}\r\n")
            }
            ["INCREX" | "INCRBY" | "DECRBY", _, .., "x"] => bad,
            ["INCRBY", key, hits] => {
                let counter = self.counters.entry((*key).to_owned()).or_default();
                *counter += hits.parse::<i64>().unwrap();
                format!(":{counter}\r\n")
            }
            ["EXPIRE", ..] => ":1\r\n".to_owned(),
            ["GET", _] => "$-1\r\n".to_owned(),
            ["PING"] => "+PONG\r\n".to_owned(),
            // A lease by the script, or returned hits.
            ["EVALSHA", hash, "1", _, _, _, _, _] if !hash.starts_with("0000") => {
                self.asked.push(words.join(" "));
                "*2\r\n:5\r\n:0\r\n".to_owned()
            }
            ["EVALSHA", hash, ..] if !hash.starts_with("0000") => ":0\r\n".to_owned(),
            ["EVALSHA" | "EVAL", ..] => "-NOSCRIPT No matching script.\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    }
}

fn play(knows_increx: bool) -> (Arc<Mutex<Played>>, Fake) {
    let played = Arc::new(Mutex::new(Played::default()));
    let server = played.clone();
    let fake = Fake::answering(move |words, _| server.lock().unwrap().answer(words, knows_increx));
    (played, fake)
}

#[test]
fn a_server_with_increx_grants_leases_by_it() {
    let (played, fake) = play(true);
    let server = leased(&redis::tcp(&fake.address()), RULES).start_healthy();
    let admitted = admitted(&server.client(), &hits("many", 1), 900);
    let asked = &played.lock().unwrap().asked;
    assert_eq!(admitted, 700, "{asked:?}");
    assert!(metric(&server, "tollgate_lease_hits_total") > 500.0);
    assert!(!asked.is_empty() && asked.iter().all(|one| one.starts_with("INCREX ")), "{asked:?}");
}

#[test]
fn a_server_without_increx_grants_leases_by_the_script() {
    let (played, fake) = play(false);
    let server = leased(&redis::tcp(&fake.address()), RULES).start_healthy();
    assert_eq!(admitted(&server.client(), &hits("many", 1), 100), 100);
    let asked = &played.lock().unwrap().asked;
    assert!(!asked.is_empty() && asked.iter().all(|one| one.starts_with("EVALSHA ")), "{asked:?}");
}
