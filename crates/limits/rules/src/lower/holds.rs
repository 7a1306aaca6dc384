//! Lowers the `hold` of a limit.

use std::time::Duration;

use super::{At, Context, Lowered, Lowering, Reported, valid};
use crate::ast::{Field, RawHold, RawLimit, RawMap as _};
use limit::{HoldRule, Kind, Limit, MAX_LIMIT, MostHeld, holds::Unknown};
use text::{diagnostics::quoted, duration};

/// As long as Redis keeps a hold twice: while it is open, and for late costs.
const LONGEST_TTL: Duration = Duration::from_secs(31 * 86_400);

const LONGEST_CURRENCY: usize = 32;

/// The keys of a limit of requests under way.
const KEYS_OF_CONCURRENCY: [&str; 7] =
    ["algorithm", "requests_per_unit", "hold", "schedule", "name", "replaces", "unlimited"];

impl Lowering<'_> {
    /// The `hold` of a limit of this kind, if it has one.
    pub(super) fn hold(
        &mut self,
        kind: Kind,
        raw: &Field<RawHold>,
        context: Context<'_>,
    ) -> Lowered<Option<HoldRule>> {
        let Some(given) = valid(raw)? else { return Ok(None) };
        let RawHold { place, index: _, amount, most, ttl, unknown, currency } = &given.value;
        let path = context.path.key("hold");
        let context = Context { path: &path, ..context };
        if !matches!(kind, Kind::FixedWindow | Kind::Concurrency) {
            let message = format!("a `{}` cannot hold", kind.name());
            let help = "use `fixed_window` or `concurrency`, or remove `hold`";
            return Err(self.error(context.at(given.key), message, help));
        }
        if !self.options.countable.may_hold() {
            let help = "remove `hold`, or set BACKEND_TYPE to redis or memory";
            return Err(self.error(context.at(given.key), "memcached cannot hold", help));
        }
        let amount = valid(amount).and_then(|amount| {
            let at = context.at_key(amount.map_or(*place, |amount| amount.place), "amount");
            let (message, help) = match (kind, amount.map(|amount| amount.value)) {
                (Kind::Concurrency, None | Some(1)) => return Ok(1),
                (Kind::Concurrency, Some(_)) => ("a request under way holds 1", "remove `amount`".to_owned()),
                (_, Some(0)) => ("a hold of 0 reserves nothing", format!("accepted: 1 to {MAX_LIMIT}")),
                (_, Some(amount)) => return Ok(amount),
                (_, None) => {
                    let help = "add `amount`, the cost to expect of a request without a `hits_addend`";
                    ("this hold has no `amount`", help.to_owned())
                }
            };
            Err(self.error(at, message, help))
        });
        let most = self.parsed("most", most, context, |written| most_of(kind, written));
        let ttl = self.parsed("ttl", ttl, context, ttl_of).and_then(|ttl| {
            ttl.ok_or_else(|| {
                let help = "add `ttl`, longer than a request may take, such as 15m: a hold that nobody ends must end";
                self.error(context.at(*place), "this hold has no `ttl`", help)
            })
        });
        let unknown = self.parsed("unknown", unknown, context, unknown_of);
        let currency = self.parsed("in", currency, context, currency_of);
        Ok(Some(HoldRule {
            amount: amount?,
            most: most?,
            ttl: ttl?,
            unknown: unknown?.unwrap_or(Unknown::Held),
            currency: currency?.unwrap_or_default(),
        }))
    }

    /// The `hold` of a limit of requests under way.
    pub(super) fn hold_of_concurrency(&mut self, raw: &RawLimit, context: Context<'_>) -> Lowered<HoldRule> {
        let mut idle = raw.given_keys();
        idle.retain(|(key, _)| !KEYS_OF_CONCURRENCY.contains(key));
        for (key, place) in &idle {
            let message = format!("a limit of requests under way has no `{key}`");
            let help = format!("remove `{key}`: `concurrency` counts requests until they end");
            self.error(context.at_key(*place, key), message, help);
        }
        // Reports what the store cannot count.
        let kind = self.kind(raw, context)?;
        if raw.hold.given().is_none() && !raw.hold.is_wrong() {
            let place = raw.algorithm.place().unwrap_or(raw.place);
            let help =
                "add `hold: {ttl: 15m}`: the place of a request whose end is never reported must become free";
            self.error(context.at(place), "this `concurrency` has no `hold`", help);
        }
        self.hold(kind, &raw.hold, context)?.filter(|_| idle.is_empty()).ok_or(Reported)
    }

    /// Reports limits of a rule of which only some hold.
    pub(super) fn report_mixed_holds(&mut self, raw: &[RawLimit], limits: &[Limit], context: Context<'_>) {
        let first = |holds| raw.iter().zip(limits).find(|(_, limit)| limit.holds == holds);
        let (Some((other, _)), Some((holding, _))) = (first(false), first(true)) else { return };
        let message = format!("this limit does not hold, but the one at {} does", holding.place);
        let help = "the limits of a rule count the same hits all or nothing: add `hold` to all, or use two descriptors";
        self.error(At { path: other.path(context.path), ..context.at(other.place) }, message, help);
    }
}

fn most_of(kind: Kind, written: &str) -> Result<MostHeld, (String, String)> {
    if kind == Kind::Concurrency {
        return Err(("a request under way holds 1".to_owned(), "remove `most`".to_owned()));
    }
    MostHeld::parse(written).ok_or_else(|| {
        let help = format!("accepted: 1 to {MAX_LIMIT}, or 1% to 100% of the limit");
        (format!("expected a number of hits or a percentage, got {}", quoted(written)), help)
    })
}

fn ttl_of(written: &str) -> Result<Duration, (String, String)> {
    let mistake = |message| (message, "accepted: 1ms to 744h, such as 90s or 15m".to_owned());
    let ttl = duration::parse(written)
        .map_err(|error| mistake(format!("expected a duration, got {}: {error}", quoted(written))))?;
    if !(Duration::from_millis(1)..=LONGEST_TTL).contains(&ttl) {
        return Err(mistake(format!("a `ttl` of {} is out of range", quoted(written))));
    }
    Ok(ttl)
}

fn unknown_of(written: &str) -> Result<Unknown, (String, String)> {
    let hits = || written.replace('_', "").parse().ok().filter(|hits| *hits <= MAX_LIMIT);
    match written {
        "held" => Ok(Unknown::Held),
        "zero" => Ok(Unknown::Hits(0)),
        _ => hits().map(Unknown::Hits).ok_or_else(|| {
            let help = format!("accepted: held, zero, or a number from 0 to {MAX_LIMIT}");
            (format!("unknown cost {}", quoted(written)), help)
        }),
    }
}

fn currency_of(written: &str) -> Result<Box<str>, (String, String)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if (1..=LONGEST_CURRENCY).contains(&written.len()) && written.bytes().all(is_plain) {
        return Ok(written.into());
    }
    let help = format!("accepted: 1 to {LONGEST_CURRENCY} of A-Z, a-z, 0-9, _ and -");
    Err((format!("invalid currency {}", quoted(written)), help))
}
