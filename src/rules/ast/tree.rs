//! The shapes of a file, read from its document.
//!
//! A map that comes twice is laid over the first, field by field, as Go's yaml.v2 fills its own types:
//! `rate_limit` once by a merge and once by hand makes one limit of both.

use super::{
    super::{
        diagnostics::{Diagnostics, Path},
        yaml::{Content, Document, Meaning, Pair},
    },
    Field, Given, RawDescriptor, RawFile, RawLimit, RawLimits, RawReplaces,
    keys::Level,
    metadata,
    reader::{Reader, Spot, scalar},
};

/// The AST of a file.
pub(crate) fn read(document: &Document, diagnostics: &mut Diagnostics) -> RawFile {
    let mut file = RawFile {
        place: None,
        domain: Field::Absent,
        on_store_failure: Field::Absent,
        descriptors: Field::Absent,
    };
    let mut reader = Reader { diagnostics };
    if let Some(place) = document.remainder {
        let message = "only the first document of a file is read, and it ends above this line".to_owned();
        let help = "give each domain a file of its own, and begin all its lines in one column";
        reader.diagnostics.warning(place, &Path::File, message, Some(help.to_owned()));
    }
    let Some(root) = &document.root else { return file };
    let spot = Spot::file(root, &Path::File);
    match &spot.node.content {
        Content::Map(pairs) => {
            file.place = Some(spot.node.place);
            reader.fields(spot, pairs, Level::File, &mut |reader, key, value| match key {
                "domain" => file.domain = reader.text(value),
                "on_store_failure" => file.on_store_failure = reader.text(value),
                _ => file.descriptors = descriptors(reader, value),
            });
        }
        _ if scalar(spot.node) == Some(&Meaning::Null) => {}
        _ => {
            reader.mismatch(&spot, "a map with `domain` and `descriptors`", "");
            file.domain = Field::Wrong;
        }
    }
    file
}

fn descriptors(reader: &mut Reader<'_>, spot: Spot<'_>) -> Field<Vec<RawDescriptor>> {
    reader.list(spot, ("descriptors", "- key: …"), descriptor)
}

fn descriptor(reader: &mut Reader<'_>, index: usize, spot: Spot<'_>) -> RawDescriptor {
    let mut raw = RawDescriptor {
        place: spot.node.place,
        index,
        key: Field::Absent,
        value: Field::Absent,
        rate_limit: Field::Absent,
        descriptors: Field::Absent,
        shadow_mode: Field::Absent,
        quota_mode: Field::Absent,
        overrides_only: Field::Absent,
        detailed_metric: Field::Absent,
        value_to_metric: Field::Absent,
        share_threshold: Field::Absent,
        metadata: Field::Absent,
        over_limit_body: Field::Absent,
    };
    let Content::Map(pairs) = &spot.node.content else { return raw };
    reader.fields(spot, pairs, Level::Descriptor, &mut |reader, key, value| match key {
        "key" => raw.key = reader.text(value),
        "value" => raw.value = reader.text(value),
        "rate_limit" => limits(reader, value, &mut raw.rate_limit),
        "descriptors" => raw.descriptors = descriptors(reader, value),
        "shadow_mode" => raw.shadow_mode = reader.flag(value),
        "overrides_only" => raw.overrides_only = reader.flag(value),
        "quota_mode" => raw.quota_mode = reader.flag(value),
        "detailed_metric" => raw.detailed_metric = reader.flag(value),
        "value_to_metric" => raw.value_to_metric = reader.flag(value),
        "share_threshold" => raw.share_threshold = reader.flag(value),
        "over_limit_body" => raw.over_limit_body = reader.text(value),
        _ => metadata::read(reader, value, &mut raw.metadata),
    });
    raw
}

/// Lays a `rate_limit` over what an earlier one of the same descriptor left; a list takes its place.
fn limits(reader: &mut Reader<'_>, spot: Spot<'_>, known: &mut Field<RawLimits>) {
    let value = match &spot.node.content {
        Content::Map(pairs) => {
            let mut limit = match std::mem::take(known) {
                Field::Given(Given { value: RawLimits::One(limit), .. }) => limit,
                _ => Box::new(RawLimit::at(spot.node.place, 0)),
            };
            limit.place = spot.node.place;
            fields_of_limit(reader, spot, pairs, &mut limit);
            RawLimits::One(limit)
        }
        Content::List(_) => {
            reader.diagnostics.unportable(spot.key, spot.path, "a list of limits");
            let Field::Given(items) = reader.list(spot, ("limits", "- unit: …"), limit_of_list) else {
                return;
            };
            RawLimits::List(items.value)
        }
        Content::Scalar(scalar) => {
            *known = if scalar.meaning == Meaning::Null {
                Field::Absent
            } else {
                let help = "add `unit` and `requests_per_unit`, or `unlimited: true`";
                reader.mismatch(&spot, "a map", help);
                Field::Wrong
            };
            return;
        }
    };
    *known = Field::Given(Given { value, place: spot.node.place, key: spot.key });
}

fn limit_of_list(reader: &mut Reader<'_>, index: usize, spot: Spot<'_>) -> RawLimit {
    let mut limit = RawLimit::at(spot.node.place, index);
    if let Content::Map(pairs) = &spot.node.content {
        fields_of_limit(reader, spot, pairs, &mut limit);
    }
    limit
}

fn fields_of_limit(reader: &mut Reader<'_>, spot: Spot<'_>, pairs: &[Pair], limit: &mut RawLimit) {
    reader.fields(spot, pairs, Level::Limit, &mut |reader, key, value| match key {
        "unit" => limit.unit = reader.text(value),
        "unit_multiplier" => limit.unit_multiplier = reader.number(value),
        "requests_per_unit" => limit.requests_per_unit = reader.number(value),
        "algorithm" => limit.algorithm = reader.text(value),
        "burst" => limit.burst = reader.number(value),
        "counting" => limit.counting = reader.text(value),
        "unlimited" => limit.unlimited = reader.flag(value),
        "name" => limit.name = reader.text(value),
        _ => limit.replaces = reader.list(value, ("limits to replace", "- name: …"), replaces),
    });
}

fn replaces(reader: &mut Reader<'_>, _: usize, spot: Spot<'_>) -> RawReplaces {
    let mut raw = RawReplaces { place: spot.node.place, name: Field::Absent };
    if let Content::Map(pairs) = &spot.node.content {
        reader.fields(spot, pairs, Level::Replaces, &mut |reader, _, value| raw.name = reader.text(value));
    }
    raw
}
