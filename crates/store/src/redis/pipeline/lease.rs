//! Hits that are added to a counter ahead of time, if they are within its limit, and returned.

use super::{Expire, Expiry};
use crate::redis::{
    resp::Reply,
    script::{self, Form},
};
use algorithms::lease::Grant;

/// What a lease knows of its grants. Their numbers begin at random, below 2⁵², so that no two leases share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub holder: u64,
    /// The last grant that Redis confirmed; 0 for none.
    pub confirmed: u64,
    /// The last grant that was requested.
    pub requested: u64,
}

/// The key of a counter's leases, and the caller's lease.
pub(in crate::redis) struct Leasing {
    pub(in crate::redis) leases: Box<str>,
    pub(in crate::redis) receipt: Receipt,
}

impl Leasing {
    pub(super) fn write_lease(
        &self,
        into: &mut Vec<u8>,
        form: Form,
        key: &[u8],
        (hits, limit, expiry): (u64, u64, Expiry),
    ) {
        let may_expire = u64::from(expiry.set != Expire::Known);
        let Receipt { holder, confirmed, requested } = self.receipt;
        let arguments = [hits, limit, expiry.seconds.into(), may_expire, holder, confirmed, requested];
        script::LEASE.call(into, form, &[key, self.leases.as_bytes()], &arguments);
    }

    pub(super) fn write_return(&self, into: &mut Vec<u8>, form: Form, key: &[u8], (hits, own): (u64, u64)) {
        let Receipt { holder, confirmed, .. } = self.receipt;
        let arguments = [hits, own, holder, confirmed];
        script::RETURN_HITS.call(into, form, &[key, self.leases.as_bytes()], &arguments);
    }
}

/// Reads the counter, and whether the hits were added.
pub(super) fn read(reply: Reply) -> Result<(u64, Grant), String> {
    let mut list = reply.into_list(2)?.into_iter();
    let mut next = || list.next().unwrap_or(Reply::Nil);
    let (after, added) = (next().into_integer()?, next());
    let grant = match added {
        Reply::Integer(..0) => Grant::Lost,
        added => {
            if added.into_integer()? > 0 {
                Grant::Added
            } else {
                Grant::Refused
            }
        }
    };
    Ok((after, grant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        redis::{
            failure::{Failure, Kind},
            pipeline::{Learned, Outcome, RedisPipeline},
        },
        remote::Pipeline,
        table::Table,
    };
    use clock::Time;

    /// The words of a lease's command, and the results of its reply.
    fn lease(set: Expire, reply: Reply) -> (Vec<String>, Option<Outcome>, Learned) {
        let mut pipeline = RedisPipeline::default();
        let id = Table::<u64>::new(1).key("k");
        let expiry = Expiry { seconds: 60, end: Time::from_seconds(120), set };
        let receipt = Receipt { holder: 7, confirmed: 30, requested: 31 };
        let leasing = Leasing { leases: "{k}:leases".into(), receipt };
        let mut waiting = pipeline.add_caller(|pipeline| pipeline.lease("k", id, (5, 100), expiry, leasing));
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
    fn the_script_receives_whether_the_key_may_expire_before_and_the_receipt() {
        for (set, expected) in [
            (Expire::Set, "k {k}:leases 5 100 60 1 7 30 31"),
            (Expire::Known, "k {k}:leases 5 100 60 0 7 30 31"),
            (Expire::Extend, "k {k}:leases 5 100 60 1 7 30 31"),
        ] {
            let (words, outcome, learned) = lease(set, granted(25, 1));
            assert_eq!(words[0], "EVALSHA");
            assert_eq!(words[3..].join(" "), expected);
            assert_eq!(learned.expiring.len(), usize::from(set != Expire::Known));
            assert!(matches!(outcome, Some(Outcome::Leased(25, Grant::Added))), "{outcome:?}");
        }
        for (added, expected) in [(0, Grant::Refused), (-1, Grant::Lost)] {
            let (_, outcome, learned) = lease(Expire::Set, granted(98, added));
            assert!(matches!(outcome, Some(Outcome::Leased(98, grant)) if grant == expected), "{outcome:?}");
            assert!(learned.expiring.is_empty(), "nothing was added");
        }
    }

    #[test]
    fn an_unexpected_reply_grants_nothing() {
        let list = |replies: &[Reply]| Reply::List(replies.to_vec());
        for reply in [
            Reply::Nil,
            Reply::Integer(5),
            list(&[]),
            list(&[Reply::Integer(5), Reply::Nil]),
            list(&[Reply::Nil, Reply::Integer(1)]),
        ] {
            let (_, outcome, learned) = lease(Expire::Set, reply);
            assert!(matches!(outcome, Some(Outcome::Failed(_))), "{outcome:?}");
            assert_eq!(learned.failures[0].kind, Kind::ProtocolError);
        }
    }
}
