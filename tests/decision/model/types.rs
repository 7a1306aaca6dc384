//! Plain data of the model: what operators and callers say, what they are answered, and what is remembered.

/// The keys and values of a descriptor.
pub(crate) type Entries = Vec<(String, String)>;

/// The descriptors that an override is for: keys, each with a value, or with what the matched rule has in its place, a
/// pattern or nothing.
pub(crate) type Target = Vec<(String, Option<String>)>;

/// A node of the tree of rules. Without a limit it limits nothing, and only ends the search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) key: String,
    /// `None` matches every value. A `*` at the end matches every value that begins so.
    pub(crate) value: Option<String>,
    /// Several limits are a list, which counts all or nothing.
    pub(crate) limits: Vec<Limit>,
    pub(crate) is_unlimited: bool,
    pub(crate) is_shadow: bool,
    pub(crate) is_quota: bool,
    /// Names of limits of other rules, which do not count beside this one.
    pub(crate) replaces: Vec<String>,
    pub(crate) below: Vec<Rule>,
}

/// A fixed window, or requests at a time.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) requests: u64,
    pub(crate) unit: Unit,
    /// The window has as many units.
    pub(crate) units: u32,
    pub(crate) name: Option<String>,
    pub(crate) hold: Option<Hold>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Day,
    Week,
    Month,
    Year,
    /// None: `algorithm: concurrency`, with a hold. Its requests hold 1 each, and nothing is charged.
    AtATime,
}

/// Reserves what a request may cost until it is settled at its cost.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// The estimate of a request without a `hits_addend`.
    pub(crate) amount: u64,
    pub(crate) most: Option<Most>,
    /// The cost of a hold that ends without one; `None` is what was held.
    pub(crate) unknown: Option<u64>,
    /// `in`.
    pub(crate) currency: String,
}

/// What one request holds at most.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Most {
    Hits(u64),
    Percent(u64),
}

/// What an operator has set for a target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Override {
    Limit(u64, Unit),
    Block,
    Allow,
    Shadow,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// `hits_addend`; 0 is 1.
    pub(crate) hits: u32,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) closings: Vec<Closing>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Descriptor {
    pub(crate) entries: Entries,
    /// Its own `hits_addend`; 0 reads.
    pub(crate) hits: Option<u64>,
    /// `is_negative_hits`: the hits are given back.
    pub(crate) is_refund: bool,
    /// Its own limit, in place of the rules'.
    pub(crate) limit: Option<Limit>,
}

/// A descriptor that settles or ends the holds of an earlier request.
#[derive(Clone, Debug)]
pub(crate) struct Closing {
    /// The number of that request, as [`Answer::hold`] has it.
    pub(crate) hold: usize,
    /// `None` ends what was not settled.
    pub(crate) cost: Option<u64>,
    /// Settles only the holds in this currency.
    pub(crate) currency: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) is_refused: bool,
    /// One for each descriptor, then one for each closing.
    pub(crate) statuses: Vec<Status>,
    /// The number of the request, if it holds something.
    pub(crate) hold: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Status {
    /// `OVER_LIMIT`.
    pub(crate) is_over: bool,
    /// `None` if several numbers are right.
    pub(crate) remaining: Option<u64>,
    /// The local cache refused what fits: it has not heard of a refund yet.
    pub(crate) is_stale: bool,
    /// Over its limit, and allowed by shadow mode.
    pub(crate) is_shadowed: bool,
}

/// What hits are counted under. Limits of the same window share a counter, also those of requests and overrides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Counter {
    pub(super) entries: Entries,
    pub(super) seconds: u64,
    pub(super) is_of_go: bool,
}

/// What a hold of a request became.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Open,
    /// Ended without a cost, and charged this.
    Ended(u64),
    Settled,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) request: usize,
    pub(super) counter: Counter,
    pub(super) amount: u64,
    pub(super) rule: Hold,
    pub(super) state: State,
}

/// What a descriptor is limited by.
pub(super) enum Meaning {
    NoLimit,
    Unlimited,
    Blocked,
    Limited(Limited),
}

pub(super) struct Limited {
    pub(super) checks: Vec<Check>,
    pub(super) is_list: bool,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    pub(super) is_refund: bool,
    /// The local cache refuses it. Its hits are not counted.
    pub(super) is_cached: bool,
}

/// A limit of a descriptor, and its counter.
pub(super) struct Check {
    pub(super) limit: Limit,
    pub(super) counter: Counter,
    pub(super) hits: u64,
    /// The hits do not fit.
    pub(super) is_over: bool,
}

impl Limit {
    /// The length of its window.
    pub(super) fn seconds(&self) -> u64 {
        self.unit.seconds() * u64::from(self.units)
    }
}

impl Unit {
    /// Those of windows.
    pub(crate) const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    pub(super) fn seconds(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
            Self::Year => 365,
            Self::AtATime => 0,
        };
        days * 24 * 3600
    }
}

impl Rule {
    /// What every value of a pattern begins with.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.value.as_ref()?.strip_suffix('*')
    }
}

impl Meaning {
    pub(super) fn limited_mut(&mut self) -> Option<&mut Limited> {
        if let Self::Limited(limited) = self { Some(limited) } else { None }
    }

    pub(super) fn limited(&self) -> Option<&Limited> {
        if let Self::Limited(limited) = self { Some(limited) } else { None }
    }
}

impl Limited {
    pub(super) fn is_over(&self) -> bool {
        self.is_cached || self.checks.iter().any(|check| check.is_over)
    }

    /// Known to be over before anything is counted: by the local cache, or because it holds.
    pub(super) fn is_known_over(&self) -> bool {
        self.is_cached || self.checks.iter().any(|check| check.is_over && check.limit.hold.is_some())
    }
}

impl Check {
    /// The seconds until as many hits fit: until the window ends, or never.
    pub(super) fn wait(&self, now: u64) -> u64 {
        let seconds = self.limit.seconds();
        if self.hits > self.limit.requests { u64::MAX } else { seconds - now % seconds }
    }
}
