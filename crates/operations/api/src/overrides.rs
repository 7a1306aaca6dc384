//! Overrides, switches of domains, and imports.

use crate::{Forecast, Limit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

shapes! {
    /// An override, or a switch of a domain, which has neither a descriptor nor an entry. What does not apply is absent.
    Override {
        id?: Option<String>; domain?: Option<String>; descriptor?: Option<Vec<OverrideEntry>>;
        entry?: Option<OverrideEntry>;
        action?: Option<String>, "`limit`, `block`, `allow`, `shadow` or `scale`.";
        on_store_failure?: Option<String>, "The failure policy of a switch: `error`, `allow`, `deny`, `local` or `share`.";
        requests_per_unit?: Option<u64>;
        unit?: Option<String>, "`SECOND`, `MINUTE`, `HOUR`, `DAY`, `WEEK`, `MONTH` or `YEAR`.";
        calendar?: Option<Calendar>;
        name?: Option<String>, "The only limit of the rule that it changes; absent for all.";
        scale?: Option<String>, "With `scale`, the limits of the rule times this, such as `50%`.";
        expires_at?: Option<String>, "Time of expiry; absent if it does not expire.";
        reason?: Option<String>;
        by?: Option<String>, "The user who set it.";
        this_replica?: bool, "True if other replicas do not have it.";
        rule?: Option<String>, "The rule that it applies to; only in the reply to setting it.";
        warning?: Option<String>,
            "Requests that it does not meet, or that Redis is away; only in the reply to setting it.";
        forecast?: Option<Forecast>,
            "What it would have made of the recorded requests; only in a preview, and absent if none are recorded or another trial \
             is under way.";
        before?: Option<LimitsInForce>, "What limited its descriptors before; only in the reply to setting it.";
        after?: Option<LimitsInForce>, "What limits its descriptors now; only in the reply to setting it.";
    }

    /// What limits the descriptors of an override.
    LimitsInForce {
        action?: Option<String>, "`block`, `allow` or `shadow`, if an override of it decides.";
        limits: Vec<Limit>, "All limits, also those that are not changed; empty without one.";
    }

    /// An entry of an override. One without a value stands for all values of the rule.
    OverrideEntry { key: String; value?: Option<String>; }

    /// The calendar that the windows follow; absent if they have one length.
    Calendar {
        time_zone: String, "A name of the IANA time zone database.";
        week_start?: Option<String>, "`monday` to `sunday`.";
        anchor_day?: Option<u64>, "The first day of a month, from 1 to 31, or its last day if it is shorter.";
    }

    Overrides {
        overrides: Vec<Override>;
        matching: u64, "Number of overrides that match the parameters.";
        total: u64;
        kept_in: String, "`memory`, `file` or `redis`.";
    }

    OverrideRemoved {
        removed: Override;
        warning?: Option<String>, "Present while Redis is away: who has the change when.";
    }

    Switches {
        domains: Vec<Override>;
        kept_in: String, "`memory`, `file` or `redis`.";
    }

    SwitchesCleared {
        cleared: Vec<Override>;
        warning?: Option<String>, "Present while Redis is away: who has the change when.";
    }

    ImportBegun { import: String, "32 hexadecimal digits."; }

    ImportLength {
        import: String;
        overrides: u64, "Number of overrides in the import.";
    }

    Imported {
        imported: u64;
        total: usize, "Number of overrides in force.";
    }

    ImportAborted { aborted: String; }
}
