//! `/api/v1/holds`: the open holds of a descriptor's limits, and their settlement by hand.

use http::StatusCode;

use super::{
    Api, counters,
    reply::{Call, Problem, Reply},
};
use ::counters::Close;
use api::{CloseHolds, Hold, Holds, HoldsClosed};
use clock::Rfc3339;
use limit::MAX_LIMIT;
use limiter::ListedHold;

/// `GET /api/v1/holds`: the open holds of a descriptor's limits, those that expire first.
pub(super) async fn list(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let target = counters::asked(&call.query)?;
    let holds = api.managed.limiter.holds(&counters::request(&target), call.query.number("n")).await;
    let holds = holds.map_err(counters::problem)?;
    let hold = |hold: &ListedHold| Hold {
        id: hold.open.id.to_string(),
        requests_per_unit: hold.limit.requests_per_unit,
        unit: hold.limit.unit.name().to_owned(),
        held: hold.open.held,
        r#in: hold.limit.hold.as_ref().map(|rule| rule.currency.to_string()),
        expires_at: Rfc3339(hold.open.expires).to_string(),
    };
    Reply::json(api, &Holds { holds: holds.iter().map(hold).collect() })
}

/// `POST /api/v1/holds/settle`: settles the holds of a request at a cost.
pub(super) async fn settle(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let settled: CloseHolds = call.json()?;
    let cost = settled.cost.filter(|cost| *cost <= MAX_LIMIT);
    let cost = cost.ok_or_else(|| {
        Problem::bad_request(format!(
            "cost: expected an integer from 0 to {MAX_LIMIT}, got {:?}",
            settled.cost
        ))
    })?;
    close(api, &settled, Close::Settle(cost)).await
}

/// `POST /api/v1/holds/end`: ends the holds of a request; they charge what `unknown` says.
pub(super) async fn end(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    let ended: CloseHolds = call.json()?;
    if ended.cost.is_some() {
        let message = "cost: an end has none; POST /api/v1/holds/settle settles at a cost";
        return Err(Problem::bad_request(message.to_owned()));
    }
    close(api, &ended, Close::End).await
}

async fn close(api: &Api, asked: &CloseHolds, close: Close) -> Result<Reply, Problem> {
    let id = asked.id.as_str();
    let read = id.parse().map_err(|()| {
        Problem::bad_request(format!("id: {id:?} is not an id of a hold; GET /api/v1/holds shows them"))
    })?;
    let currency = asked.r#in.as_deref().map(Box::from);
    let closed = api.managed.limiter.close_hold(read, close, currency).await.map_err(counters::problem)?;
    if closed == 0 {
        let message = format!("no hold of {id} is open or remembered: it was settled, or forgotten");
        return Err(Problem::new(StatusCode::NOT_FOUND, message));
    }
    let reason = asked.reason.clone().unwrap_or_default();
    Ok(Reply::json(api, &HoldsClosed { closed })?.changed(id.to_owned(), &reason))
}
