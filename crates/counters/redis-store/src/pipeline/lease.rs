//! Hits that are added to a counter ahead of time, if they are within its limit, and returned.

use std::ptr;

use limit::lease::Grant;
use smallvec::SmallVec;

use super::{Expire, Expiry};
use crate::{
    resp::Reply,
    script::{self, Form, Script},
};
use clock::Time;
use counters::CounterId;

/// What a lease knows of its grants. Their numbers begin at random, below 2⁵², so that no two leases share one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    pub holder: u64,
    /// The last grant that Redis confirmed; 0 for none.
    pub confirmed: u64,
    /// The last grant that was requested.
    pub requested: u64,
}

/// A call of the script that adds or returns leased hits.
pub(crate) struct LeaseCall {
    script: &'static Script,
    leases: Box<str>,
    arguments: SmallVec<[u64; 7]>,
    /// The hash of the counter's key and the end of its window, if added hits set the expiry.
    expiring: Option<(CounterId, Time)>,
}

impl LeaseCall {
    pub(super) fn script(&self) -> &'static Script {
        self.script
    }

    /// Adds hits to a counter with this hash if they are within the limit.
    pub(crate) fn take(
        leases: String,
        hits: u64,
        limit: u64,
        id: CounterId,
        expiry: Expiry,
        Receipt { holder, confirmed, requested }: Receipt,
    ) -> Self {
        let expiring = (expiry.set != Expire::Known).then_some((id, expiry.end));
        let seconds = expiry.seconds.into();
        let may_expire = expiring.is_some().into();
        let arguments = [hits, limit, seconds, may_expire, holder, confirmed, requested];
        Self { script: &script::LEASE, leases: leases.into(), arguments: arguments.into(), expiring }
    }

    /// Returns unspent hits of a lease, of `own` that this replica has added.
    pub(crate) fn give_back(leases: String, hits: u64, own: u64, receipt: Receipt) -> Self {
        let arguments = SmallVec::from_slice(&[hits, own, receipt.holder, receipt.confirmed]);
        Self { script: &script::RETURN_HITS, leases: leases.into(), arguments, expiring: None }
    }

    /// True if the reply matters to its caller however late it is: the counter has the hits.
    pub(in super::super) fn takes(&self) -> bool {
        ptr::eq(self.script, &raw const script::LEASE)
    }

    pub(super) fn write(&self, into: &mut Vec<u8>, form: Form, key: &[u8]) {
        self.script.call(into, form, &[key, self.leases.as_bytes()], &self.arguments);
    }

    /// Reads the counter, and whether the hits were added. Adds the key to `expiring` if its expiry is confirmed.
    pub(super) fn read(
        &self,
        reply: Reply,
        expiring: &mut Vec<(CounterId, Time)>,
    ) -> Result<(u64, Grant), String> {
        let mut list = reply.into_list(2)?.into_iter();
        let mut next = || list.next().ok_or_else(|| Reply::Nil.unexpected("two integers"))?.into_integer();
        // Another program may have written a negative number, which has no hits.
        let after = next()?.max(0).cast_unsigned();
        let grant = next()?;
        let grant = match grant {
            ..0 => Grant::Lost,
            0 => Grant::Refused,
            1.. => Grant::Added,
        };
        if grant == Grant::Added {
            expiring.extend(self.expiring);
        }
        Ok((after, grant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        failure::{Failure, FailureKind},
        pipeline::{CheckResult, Learned, RedisPipeline},
    };
    use wire::{Patience, Pipeline};

    /// The words of a lease's command, and the results of its reply.
    fn lease(set: Expire, reply: Reply) -> (Vec<String>, Option<CheckResult>, Learned) {
        let mut pipeline = RedisPipeline::default();
        let id = CounterId::of_name("k");
        let expiry = Expiry { seconds: 60, end: Time::from_seconds(120), set };
        let receipt = Receipt { holder: 7, confirmed: 30, requested: 31 };
        let call = LeaseCall::take("{k}:leases".to_owned(), 5, 100, id, expiry, receipt);
        let mut waiting = pipeline.add_caller(Patience::Timeout, None, |pipeline| pipeline.lease("k", call));
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
        ] {
            let (words, outcome, learned) = lease(set, granted(25, 1));
            assert_eq!(words[0], "EVALSHA");
            assert_eq!(words[3..].join(" "), expected);
            assert_eq!(learned.expiring.len(), usize::from(set != Expire::Known));
            assert!(matches!(outcome, Some(CheckResult::Leased(25, Grant::Added))), "{outcome:?}");
        }
        for (added, expected) in [(0, Grant::Refused), (-1, Grant::Lost)] {
            let (_, outcome, learned) = lease(Expire::Set, granted(98, added));
            assert!(
                matches!(outcome, Some(CheckResult::Leased(98, grant)) if grant == expected),
                "{outcome:?}"
            );
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
            assert!(matches!(outcome, Some(CheckResult::Failed(_))), "{outcome:?}");
            assert_eq!(learned.failures[0].kind, FailureKind::ProtocolError);
        }
    }
}
