//! The methods that ask for a decision, and how their messages differ: Envoy's `ShouldRateLimit`, and the service that
//! Kuadrant's wasm-shim calls.

use std::time::Duration;

use limiter::{Answer, Ask, Request};
use metrics::Method;
use proto::protobuf::{Fields, Key, Malformed};

use super::{
    encode::{self, encode},
    request::low_half,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DecisionRpc {
    ShouldRateLimit,
    CheckRateLimit,
    Report,
    Reserve,
    Commit,
}

impl DecisionRpc {
    const ALL: [Self; 5] =
        [Self::ShouldRateLimit, Self::CheckRateLimit, Self::Report, Self::Reserve, Self::Commit];

    pub(crate) fn at(path: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|rpc| rpc.path().as_bytes() == path)
    }

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::ShouldRateLimit => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Self::CheckRateLimit => "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
            Self::Report => "/kuadrant.service.ratelimit.v1.RateLimitService/Report",
            Self::Reserve => "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
            Self::Commit => "/kuadrant.service.ratelimit.v1.RateLimitService/Commit",
        }
    }

    /// The names of the service and of the method.
    pub(crate) fn names(self) -> Option<(&'static str, &'static str)> {
        self.path().trim_start_matches('/').split_once('/')
    }

    pub(crate) fn method(self) -> Method {
        match self {
            Self::ShouldRateLimit => Method::ShouldRateLimit,
            Self::CheckRateLimit => Method::CheckRateLimit,
            Self::Report => Method::Report,
            Self::Reserve => Method::Reserve,
            Self::Commit => Method::Commit,
        }
    }

    pub(crate) fn request_name(self) -> &'static str {
        match self {
            Self::ShouldRateLimit | Self::CheckRateLimit | Self::Report => "RateLimitRequest",
            Self::Reserve => "ReserveRequest",
            Self::Commit => "CommitRequest",
        }
    }

    pub(crate) fn is_kuadrants(self) -> bool {
        self != Self::ShouldRateLimit
    }

    /// Appends the encoded response to `out`. Without a domain Kuadrant's are empty: the code UNKNOWN, nothing released.
    pub(crate) fn encode(self, answer: &Answer, out: &mut Vec<u8>) {
        match self {
            Self::ShouldRateLimit | Self::CheckRateLimit | Self::Report => encode(answer, out),
            Self::Reserve => {
                proto::encode::number(out, 1, encode::code(answer.code));
                if let Some(hold) = &answer.hold {
                    proto::encode::text(out, 2, &hold.id().to_string());
                }
            }
            Self::Commit => proto::encode::number(out, 1, answer.released.into()),
        }
    }
}

/// What a message has beside its domain and descriptors, in fields whose numbers mean something else in each.
pub(super) struct OwnFields {
    rpc: DecisionRpc,
    amount: u64,
    seconds: i64,
    nanos: i32,
}

impl OwnFields {
    pub(super) fn new(rpc: DecisionRpc) -> Self {
        Self { rpc, amount: 0, seconds: 0, nanos: 0 }
    }

    pub(super) fn read<'m>(
        &mut self,
        key: Key,
        fields: &mut Fields<'m>,
        request: &mut Request<'m>,
    ) -> Result<(), Malformed> {
        match (self.rpc, key.number) {
            (DecisionRpc::Reserve, 3) | (DecisionRpc::Commit, 4) => self.amount = fields.number(key)?,
            (DecisionRpc::Reserve, 4) => self.read_ttl(fields.message(key)?)?,
            (DecisionRpc::Commit, 3) => request.reservation = fields.text(key)?,
            (_, 3) => request.hits_addend = low_half(fields.number(key)?),
            _ => fields.skip(key)?,
        }
        Ok(())
    }

    /// A `google.protobuf.Duration`.
    fn read_ttl(&mut self, mut fields: Fields<'_>) -> Result<(), Malformed> {
        while let Some(key) = fields.next_key()? {
            match key.number {
                1 => self.seconds = fields.number(key)?.cast_signed(),
                2 => self.nanos = low_half(fields.number(key)?).cast_signed(),
                _ => fields.skip(key)?,
            }
        }
        Ok(())
    }

    /// Kuadrant's hits are those of the whole request; whether it asks for some is no question of a check.
    pub(super) fn finish(self, request: &mut Request<'_>) {
        let hits = match self.rpc {
            DecisionRpc::ShouldRateLimit => return,
            DecisionRpc::Report => {
                request.ask = Ask::Report;
                return;
            }
            DecisionRpc::CheckRateLimit => {
                request.ask = Ask::Look;
                1
            }
            DecisionRpc::Reserve => {
                let nanos = u32::try_from(self.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
                let ttl = u64::try_from(self.seconds).ok().zip(nanos);
                let ttl = ttl.map(|(seconds, nanos)| Duration::new(seconds, nanos));
                request.ask = Ask::Reserve { ttl: ttl.filter(|ttl| !ttl.is_zero()) };
                self.amount
            }
            DecisionRpc::Commit => {
                request.ask = Ask::Report;
                self.amount
            }
        };
        for descriptor in &mut request.descriptors {
            descriptor.hits_addend = Some(hits);
            descriptor.is_negative_hits = false;
        }
    }
}
