//! What the settings mean to the limiter and to the compiler of rules.

use std::sync::Arc;

use super::{Answers, Backend, KeyFormat, Settings};
use ::memcached::MemcachedStore;
use limit::Countable;
use limiter::{Bounds, MetadataDetail, Policy, ResponseOptions};
use rules::CompileOptions;
use rules_source::RulesDir;

/// The options for compiling rules: the store must be able to count every limit.
pub fn compile_options(settings: &Settings) -> CompileOptions {
    let countable = match settings.backend {
        Backend::Memory | Backend::Redis(_) => Countable::Everything,
        Backend::Memcached(_) => MemcachedStore::COUNTABLE,
    };
    CompileOptions {
        merge_domains: settings.rules.merge_domains,
        portable: false,
        strict: false,
        countable,
        counting: settings.store.counting,
        calendar_months: settings.store.calendar_months,
        max_values: settings.rules.max_values,
    }
}

/// Where the rules files are, and how large they may be.
pub fn rules_directory(settings: &Settings) -> RulesDir {
    let rules = &settings.rules;
    RulesDir::new(&rules.root, &rules.subdirectory, &rules.app_directory, rules.ignore_dot_files)
        .at_most(settings.memory.text_of_rules() as u64)
}

pub fn policy(settings: &Settings) -> Policy {
    Policy {
        bounds: Bounds { descriptors: settings.server.max_descriptors, entries: settings.server.max_entries },
        near_limit_ratio: settings.store.near_limit_ratio,
        key_prefix: settings.store.key_prefix.clone(),
        full_keys: settings.store.key_format == KeyFormat::Unambiguous,
        counting: settings.store.counting,
        calendar_months: settings.store.calendar_months,
        stop_when_over: settings.store.stop_when_over,
        shadow_mode: settings.answers.shadow_mode,
        quota_mode: settings.answers.quota_mode,
        quota_groups: settings.answers.quota_groups,
        response: response_options(&settings.answers),
        on_store_failure: settings.store.on_failure,
        max_local_keys: settings.store.max_keys,
        max_holds: settings.store.holds,
    }
}

fn response_options(answers: &Answers) -> ResponseOptions {
    ResponseOptions {
        headers: answers.headers.then(|| answers.header_names.clone()),
        all_headers: answers.all_headers,
        request_headers: answers.request_headers.then(|| answers.request_header_names.clone()),
        retry_after: answers.retry_after_header.as_deref().map(Arc::from),
        policy_headers: answers.policy_headers,
        over_limit_body: answers.over_limit_body.clone(),
        metadata: match (answers.dynamic_metadata, answers.dynamic_metadata_limits) {
            (_, true) => MetadataDetail::WithLimits,
            (true, false) => MetadataDetail::Plain,
            (false, false) => MetadataDetail::None,
        },
        metadata_codes: answers.dynamic_metadata_codes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Available;

    #[test]
    fn limits_in_the_metadata_include_the_plain_metadata() {
        for (plain, limits, expected) in [
            (false, false, MetadataDetail::None),
            (true, false, MetadataDetail::Plain),
            (true, true, MetadataDetail::WithLimits),
            (false, true, MetadataDetail::WithLimits),
        ] {
            let (settings, _) = Settings::read(&|_| None, &|_| false, 1, Available::default()).unwrap();
            let answers =
                Answers { dynamic_metadata: plain, dynamic_metadata_limits: limits, ..settings.answers };
            assert_eq!(response_options(&answers).metadata, expected, "{plain} {limits}");
        }
    }
}
