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

text::named! {
    /// By their paths.
    pub(crate) enum DecisionRpc {
        ShouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        CheckRateLimit = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
        Report = "/kuadrant.service.ratelimit.v1.RateLimitService/Report",
        Reserve = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
        Commit = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit",
    }
}

impl DecisionRpc {
    pub(crate) fn at(path: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|rpc| rpc.name().as_bytes() == path)
    }

    /// The names of the service and of the method.
    pub(crate) fn names(self) -> Option<(&'static str, &'static str)> {
        self.name().trim_start_matches('/').split_once('/')
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

    fn ttl(&self) -> Option<Duration> {
        let nanos = u32::try_from(self.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        let ttl = Duration::new(u64::try_from(self.seconds).ok()?, nanos);
        (!ttl.is_zero()).then_some(ttl)
    }

    /// Kuadrant's hits are those of the whole request; whether it asks for some is no question of a check.
    pub(super) fn finish(self, request: &mut Request<'_>) {
        let (ask, hits) = match self.rpc {
            DecisionRpc::ShouldRateLimit => return,
            DecisionRpc::CheckRateLimit => (Ask::Look, Some(1)),
            DecisionRpc::Report => (Ask::Report, None),
            DecisionRpc::Reserve => (Ask::Reserve { ttl: self.ttl() }, Some(self.amount)),
            DecisionRpc::Commit => (Ask::Report, Some(self.amount)),
        };
        request.ask = ask;
        let Some(hits) = hits else { return };
        for descriptor in &mut request.descriptors {
            descriptor.hits_addend = Some(hits);
            descriptor.is_negative_hits = false;
        }
    }
}
