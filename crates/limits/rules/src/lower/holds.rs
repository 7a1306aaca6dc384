//! Lowers the `hold` of a limit.

use std::time::Duration;

use super::{
    Context, Lowering,
    limits::{Lowered, Reported, valid},
};
use crate::ast::{Given, RawHold, RawLimit, RawLimits};
use limit::{HoldRule, Kind, Limit, MAX_LIMIT, holds::Unknown};
use text::{
    diagnostics::{Place, quoted},
    duration,
};

/// As long as Redis keeps a hold twice: while it is open, and for late costs.
const LONGEST_TTL: Duration = Duration::from_secs(31 * 86_400);

const LONGEST_CURRENCY: usize = 32;

impl Lowering<'_> {
    /// The `hold` of a limit of this kind, if it has one.
    pub(super) fn hold(
        &mut self,
        kind: Kind,
        raw: &RawLimit,
        context: Context<'_>,
    ) -> Lowered<Option<HoldRule>> {
        let Some(given) = valid(&raw.hold)? else { return Ok(None) };
        let path = context.path.key("hold");
        let context = Context { path: &path, ..context };
        if !matches!(kind, Kind::FixedWindow | Kind::Concurrency) {
            let message = format!("a `{}` cannot hold", kind.name());
            let help = "use `fixed_window` or `concurrency`, or remove `hold`";
            self.error(context.at(given.key, context.path), message, help);
            return Err(Reported);
        }
        if !self.options.countable.may_hold() {
            let help = "remove `hold`, or set BACKEND_TYPE to redis or memory";
            self.error(context.at(given.key, context.path), "memcached cannot hold", help);
            return Err(Reported);
        }
        let amount = self.amount(kind, given, context);
        let ttl = self.ttl(given, context);
        let unknown = self.unknown(given, context);
        let currency = self.currency(given, context);
        Ok(Some(HoldRule { amount: amount?, ttl: ttl?, unknown: unknown?, currency: currency? }))
    }

    fn amount(&mut self, kind: Kind, given: &Given<RawHold>, context: Context<'_>) -> Lowered<u64> {
        let amount = valid(&given.value.amount)?;
        let (place, message, help) = match (kind, amount.map(|amount| (amount.value, amount.place))) {
            (Kind::Concurrency, None | Some((1, _))) => return Ok(1),
            (Kind::Concurrency, Some((_, place))) => {
                (place, "a request under way holds 1", "remove `amount`".to_owned())
            }
            (_, Some((amount @ 1.., _))) => return Ok(amount),
            (_, Some((_, place))) => {
                (place, "a hold of 0 reserves nothing", format!("accepted: 1 to {MAX_LIMIT}"))
            }
            (_, None) => {
                let help = "add `amount`, the cost to expect of a request without a `hits_addend`";
                (given.place, "this hold has no `amount`", help.to_owned())
            }
        };
        self.error(context.at(place, &context.path.key("amount")), message, help);
        Err(Reported)
    }

    fn ttl(&mut self, given: &Given<RawHold>, context: Context<'_>) -> Lowered<Duration> {
        let Some(ttl) = valid(&given.value.ttl)? else {
            let help =
                "add `ttl`, longer than a request may take, such as 15m: a hold that nobody ends must end";
            self.error(context.at(given.place, context.path), "this hold has no `ttl`", help);
            return Err(Reported);
        };
        let range = Duration::from_millis(1)..=LONGEST_TTL;
        let accepted = "accepted: 1ms to 744h, such as 90s or 15m";
        let read = duration::parse(&ttl.value).map_err(|error| error.to_string());
        match read {
            Ok(read) if range.contains(&read) => return Ok(read),
            Ok(_) => {
                let message = format!("a `ttl` of {} is out of range", quoted(&ttl.value));
                self.error(context.at(ttl.place, &context.path.key("ttl")), message, accepted);
            }
            Err(error) => {
                let message = format!("expected a duration, got {}: {error}", quoted(&ttl.value));
                self.error(context.at(ttl.place, &context.path.key("ttl")), message, accepted);
            }
        }
        Err(Reported)
    }

    fn unknown(&mut self, given: &Given<RawHold>, context: Context<'_>) -> Lowered<Unknown> {
        let Some(unknown) = valid(&given.value.unknown)? else { return Ok(Unknown::Held) };
        let written = unknown.value.as_str();
        let hits = || written.replace('_', "").parse().ok().filter(|hits| *hits <= MAX_LIMIT);
        match written {
            "held" => Ok(Unknown::Held),
            "zero" => Ok(Unknown::Hits(0)),
            _ => hits().map(Unknown::Hits).ok_or_else(|| {
                let message = format!("unknown cost {}", quoted(written));
                let help = format!("accepted: held, zero, or a number from 0 to {MAX_LIMIT}");
                self.error(context.at(unknown.place, &context.path.key("unknown")), message, help);
                Reported
            }),
        }
    }

    fn currency(&mut self, given: &Given<RawHold>, context: Context<'_>) -> Lowered<Box<str>> {
        let Some(currency) = valid(&given.value.currency)? else { return Ok(Box::default()) };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let written = currency.value.as_str();
        if (1..=LONGEST_CURRENCY).contains(&written.len()) && written.bytes().all(is_plain) {
            return Ok(written.into());
        }
        let message = format!("invalid currency {}", quoted(written));
        let help = format!("accepted: 1 to {LONGEST_CURRENCY} of A-Z, a-z, 0-9, _ and -");
        self.error(context.at(currency.place, &context.path.key("in")), message, help);
        Err(Reported)
    }

    pub(super) fn concurrency(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<Limit> {
        let idle = [
            ("unit", raw.unit.key()),
            ("unit_multiplier", raw.unit_multiplier.key()),
            ("calendar", raw.calendar.key()),
            ("burst", raw.burst.key()),
            ("counting", raw.counting.key()),
        ];
        let idle: Vec<(&str, Place)> =
            idle.into_iter().filter_map(|(key, place)| Some((key, place?))).collect();
        for (key, place) in &idle {
            let message = format!("a limit of requests under way has no `{key}`");
            let help = format!("remove `{key}`: `concurrency` counts requests until they end");
            self.error(context.at(*place, &context.path.key(key)), message, help);
        }
        // Reports what the store cannot count.
        let kind = self.kind(raw, context)?;
        if raw.hold.given().is_none() && !raw.hold.is_wrong() {
            let place = raw.algorithm.place().unwrap_or(raw.place);
            let help =
                "add `hold: {ttl: 15m}`: the place of a request whose end is never reported must become free";
            self.error(context.at(place, context.path), "this `concurrency` has no `hold`", help);
        }
        let hold = self.hold(kind, raw, context)?.filter(|_| idle.is_empty()).ok_or(Reported)?;
        let name = raw.name.value().filter(|name| !name.is_empty()).map(|name| name.as_str().into());
        let requests = raw.requests_per_unit.value().copied().unwrap_or(0);
        Ok(Limit::concurrency(requests, hold).named(name))
    }

    /// Reports limits of a rule of which only some hold.
    pub(super) fn report_mixed_holds(&mut self, raw: &RawLimits, limits: &[Limit], context: Context<'_>) {
        let mut all = raw.as_slice().iter().zip(limits);
        let (Some((other, _)), Some((holding, _))) = (
            all.clone().find(|(_, limit)| limit.hold.is_none()),
            all.find(|(_, limit)| limit.hold.is_some()),
        ) else {
            return;
        };
        let message = format!("this limit does not hold, but the one at {} does", holding.place);
        let help = "the limits of a rule count the same hits all or nothing: add `hold` to all, or use two descriptors";
        self.error(context.at(other.place, &raw.path(context.path, other)), message, help);
    }
}
