//! The bodies of calls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Calendar, OverrideEntry};

/// Text as on the command line, or its parts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, PartialEq, Debug)]
#[serde(untagged)]
#[schemars(inline)]
pub enum TextOr<T> {
    Text(String),
    Parts(T),
}

impl<T> Default for TextOr<T> {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

shapes! {
    #[serde(deny_unknown_fields)]
    #[schemars(bound = "D: JsonSchema + Default", rename = "ResetCounters")]
    ResetCounters<D = TextOr<Vec<OverrideEntry>>> {
        domain: String; descriptor: D;
        reason?: Option<String>, "Shown in the log.";
    }

    #[serde(deny_unknown_fields)]
    CloseHolds {
        id: String;
        cost?: Option<u64>, "What the request cost, to settle; absent to end. At most 2^53 - 1.";
        r#in?: Option<String>, "Only holds of this currency.";
        reason?: Option<String>, "Shown in the log.";
    }

    #[serde(deny_unknown_fields)]
    TryRules { rules: String, "The text of a rules file. Its domains are tried."; }

    #[serde(deny_unknown_fields)]
    SetOverride {
        id?: Option<String>, "Ignored, except in imports.";
        domain: String, "With `entry`, `*` is every domain.";
        descriptor?: Option<TextOr<Vec<OverrideEntry>>>, "An entry without a value stands for all values of the rule.";
        entry?: Option<TextOr<OverrideEntry>>,
            "Instead of a descriptor: every descriptor that has the entry at any place is met. The value may be a \
             network, `10.0.0.0/8`, or a prefix, `2001:db8:*`.";
        action: String, "`limit`, `block`, `allow`, `shadow` or `scale`.";
        requests_per_unit?: Option<u64>, "At most 2^53 - 1.";
        unit?: Option<String>, "Upper or lower case.";
        calendar?: Option<TextOr<Calendar>>, "As text, such as `Europe/Berlin,anchor_day=15`.";
        name?: Option<String>, "The `name` of the only limit of the rule to change; the others stay.";
        scale?: Option<String>, "With the action `scale`: the limits of the rule times this, from `1%` to `10000%`.";
        expires_at?: Option<String>, "Time of expiry; null for never.";
        r#for?: Option<String>, "Duration instead of `expires_at`, such as `2h`.";
        reason?: Option<String>; by?: Option<String>;
        force?: Option<bool>, "Set it even if no request can meet it.";
    }

    #[serde(deny_unknown_fields)]
    SwitchDomain {
        id?: Option<String>, "Ignored.";
        domain: String, "`*` is every domain without a switch of its own.";
        action?: Option<String>, "`allow` or `shadow`; either this or `on_store_failure`.";
        on_store_failure?: Option<String>, "`error`, `allow`, `deny`, `local` or `share`.";
        expires_at?: Option<String>, "Time of expiry; null for never.";
        r#for?: Option<String>, "Duration instead of `expires_at`, such as `2h`.";
        reason?: Option<String>; by?: Option<String>;
        this_replica?: Option<bool>, "Switch this replica alone, and store nothing.";
        force?: Option<bool>, "Switch a domain that the rules do not have.";
    }
}
