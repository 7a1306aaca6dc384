//! Hits that are added to a counter ahead of time, if they are within its limit, and returned.
//!
//! A server with `INCREX` (Redis 8.8, Valkey 9.2) does it in one command; others run a script.

use super::{Expire, Expiry};
use crate::store::redis::{
    permissions::is_denied,
    resp::{self, Reply},
    script::{self, Form},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseBy {
    Script,
    /// `INCREX` never changes an existing expiry.
    Increx,
}

pub(super) fn write(
    into: &mut Vec<u8>,
    key: &[u8],
    hits: u64,
    limit: u64,
    expiry: Expiry,
    by: LeaseBy,
    form: Form,
) {
    let seconds = u64::from(expiry.seconds);
    match by {
        LeaseBy::Script => {
            let may_expire = u64::from(expiry.set != Expire::Known);
            script::LEASE.call(into, form, key, &[hits, limit, seconds, may_expire]);
        }
        LeaseBy::Increx => {
            let [hits, limit, seconds] = [hits, limit, seconds].map(|number| number.to_string().into_bytes());
            let words = [&b"INCREX"[..], key, b"BYINT", &hits, b"UBOUND", &limit, b"EX", &seconds, b"ENX"];
            resp::write_command(into, &words);
        }
    }
}

/// True if the server knows `INCREX` and permits it, by its reply to the test.
pub(super) fn is_known(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(error) if !is_denied(error))
}

/// Reads the counter, and whether the hits were added.
pub(super) fn read(reply: Reply) -> Result<(u64, bool), String> {
    let mut list = reply.into_list(2)?.into_iter();
    let mut next = || list.next().unwrap_or(Reply::Nil).into_integer();
    Ok((next()?, next()? > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Time,
        store::{
            redis::{
                failure::{Failure, Kind},
                pipeline::{Learned, Outcome, RedisPipeline},
            },
            remote::Pipeline,
            table::Table,
        },
    };

    fn expiry(set: Expire) -> Expiry {
        Expiry { seconds: 60, end: Time::from_seconds(120), set }
    }

    /// The words of a lease's command, and the results of its reply.
    fn lease(set: Expire, by: LeaseBy, reply: Reply) -> (Vec<String>, Option<Outcome>, Learned) {
        let mut pipeline = RedisPipeline::default();
        let id = Table::<u64>::new(1).key("k");
        let mut waiting = pipeline.add_caller(|pipeline| pipeline.lease("k", id, 5, 100, expiry(set), by));
        let mut bytes = Vec::new();
        pipeline.write(&mut bytes);
        assert_eq!(pipeline.replies(), 1);
        let written = String::from_utf8(bytes).unwrap();
        let words = written.split("\r\n").filter(|word| !word.starts_with(['*', '$']) && !word.is_empty());
        let words = words.map(str::to_owned).collect();
        let learned = pipeline.complete(vec![reply], |kind, error| Failure::new(kind, error.to_owned()));
        let outcome = waiting.try_recv().unwrap().unwrap().into_iter().next();
        (words, outcome, learned)
    }

    fn granted(after: i64, granted: i64) -> Reply {
        Reply::List(vec![Reply::Integer(after), Reply::Integer(granted)])
    }

    #[test]
    fn increx_adds_all_or_nothing_and_keeps_an_expiry() {
        let (words, outcome, learned) = lease(Expire::Set, LeaseBy::Increx, granted(25, 5));
        assert_eq!(words.join(" "), "INCREX k BYINT 5 UBOUND 100 EX 60 ENX");
        assert!(matches!(outcome, Some(Outcome::Leased(25, true))), "{outcome:?}");
        assert!(learned.expiring.is_empty(), "the key may expire earlier");
        let (_, outcome, _) = lease(Expire::Known, LeaseBy::Increx, granted(98, 0));
        assert!(matches!(outcome, Some(Outcome::Leased(98, false))), "{outcome:?}");
    }

    #[test]
    fn the_script_receives_whether_the_key_may_expire_before() {
        for (set, by, expected) in [
            (Expire::Set, LeaseBy::Script, "k 5 100 60 1"),
            (Expire::Known, LeaseBy::Script, "k 5 100 60 0"),
            (Expire::Extend, LeaseBy::Increx, "k 5 100 60 1"),
        ] {
            let (words, _, learned) = lease(set, by, granted(25, 1));
            assert_eq!(words[0], "EVALSHA");
            assert_eq!(words[3..].join(" "), expected);
            assert_eq!(learned.expiring.len(), usize::from(set != Expire::Known));
        }
        let (.., learned) = lease(Expire::Set, LeaseBy::Script, granted(98, 0));
        assert!(learned.expiring.is_empty(), "nothing was added");
    }

    #[test]
    fn increx_is_not_sent_to_a_server_that_does_not_know_it() {
        let error = "ERR unknown command 'INCREX', with args beginning with: 'k' ";
        let (_, outcome, learned) = lease(Expire::Set, LeaseBy::Increx, Reply::Error(error.to_owned()));
        assert_eq!(learned.has_increx, Some(false));
        assert!(matches!(outcome, Some(Outcome::Failed(_))), "{outcome:?}");
        assert!(!is_known(&Reply::Error(error.to_owned())));
        assert!(!is_known(&Reply::Error(
            "NOPERM this user has no permissions to run the 'increx' command".into()
        )));
        assert!(is_known(&Reply::Error("ERR value is not an integer or out of range".into())));
    }

    #[test]
    fn an_unexpected_reply_grants_nothing() {
        for reply in [Reply::Nil, Reply::Integer(5), Reply::List(Vec::new())] {
            let (_, outcome, learned) = lease(Expire::Set, LeaseBy::Script, reply);
            assert!(matches!(outcome, Some(Outcome::Failed(_))), "{outcome:?}");
            assert_eq!(learned.failures[0].kind, Kind::ProtocolError);
        }
    }
}
