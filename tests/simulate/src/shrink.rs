//! Makes a failing plan smaller, as long as it violates the same invariant.

use crate::{
    checks::{Invariant, Violation},
    plan::Plan,
    simulation::Simulation,
};

/// The smallest plan found: without the actions and callers that the violation does not need, and no longer than it takes.
pub fn shrink(plan: &Plan, violation: &Violation) -> Plan {
    let mut smallest = ending(plan, violation);
    let mut violation = fails(&smallest, violation.invariant).unwrap_or_else(|| {
        smallest = plan.clone();
        violation.clone()
    });
    loop {
        let smaller = candidates(&smallest).find_map(|candidate| {
            let found = fails(&candidate, violation.invariant)?;
            Some((candidate, found))
        });
        let Some((candidate, found)) = smaller else { return smallest };
        // Without what follows the violation, unless that is needed.
        let shorter = ending(&candidate, &found);
        smallest = if fails(&shorter, violation.invariant).is_some() { shorter } else { candidate };
        violation = found;
    }
}

fn fails(plan: &Plan, invariant: Invariant) -> Option<Violation> {
    Simulation::run(plan, false).violation.filter(|found| found.invariant == invariant)
}

/// The plan without what comes after a violation.
fn ending(plan: &Plan, violation: &Violation) -> Plan {
    let mut plan = plan.clone();
    plan.traffic = plan.traffic.min(violation.at);
    plan.actions.retain(|one| one.at <= violation.at);
    plan
}

/// The plan with one action or caller less.
fn candidates(plan: &Plan) -> impl Iterator<Item = Plan> {
    let without_action = (0..plan.actions.len()).map(|at| {
        let mut plan = plan.clone();
        plan.actions.remove(at);
        plan
    });
    let without_caller = (0..plan.callers.len()).map(|at| {
        let mut plan = plan.clone();
        plan.callers.remove(at);
        plan
    });
    let streaming = plan.streams.iter().flat_map(|plan| 0..plan.callers.len());
    let without_stream = streaming.map(|at| {
        let mut plan = plan.clone();
        plan.streams.as_mut().expect("it has streams").callers.remove(at);
        plan
    });
    without_action.chain(without_caller).chain(without_stream)
}
