//! The invariants, how often each was put to the test, and the first violation.

use crate::world::Micros;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invariant {
    Limit,
    Unused,
    Deadline,
    Negative,
    Reset,
    Override,
    Converged,
    Recovery,
    Leak,
    Metrics,
    Expiry,
    Counted,
    Policy,
    Bound,
    Held,
    Charged,
    Released,
    Ends,
}

impl Invariant {
    pub const ALL: [Self; 18] = [
        Self::Limit,
        Self::Unused,
        Self::Deadline,
        Self::Negative,
        Self::Reset,
        Self::Override,
        Self::Converged,
        Self::Recovery,
        Self::Leak,
        Self::Metrics,
        Self::Expiry,
        Self::Counted,
        Self::Policy,
        Self::Bound,
        Self::Held,
        Self::Charged,
        Self::Released,
        Self::Ends,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Unused => "unused",
            Self::Deadline => "deadline",
            Self::Negative => "negative",
            Self::Reset => "reset",
            Self::Override => "override",
            Self::Converged => "converged",
            Self::Recovery => "recovery",
            Self::Leak => "leak",
            Self::Metrics => "metrics",
            Self::Expiry => "expiry",
            Self::Counted => "counted",
            Self::Policy => "policy",
            Self::Bound => "bound",
            Self::Held => "held",
            Self::Charged => "charged",
            Self::Released => "released",
            Self::Ends => "ends",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub at: Micros,
    pub what: String,
    /// The limit that it is about.
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Checks {
    pub tested: [u64; Invariant::ALL.len()],
    pub violation: Option<Violation>,
}

impl Checks {
    pub fn hold(&mut self, invariant: Invariant, holds: bool, at: Micros, what: impl FnOnce() -> String) {
        self.tested[invariant as usize] += 1;
        if !holds && self.violation.is_none() {
            let what = what();
            let limit = what.split("limit: ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
            self.violation = Some(Violation { invariant, at, what, limit });
        }
    }
}
