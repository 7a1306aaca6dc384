//! The words of the service's enums in recorded plans.

macro_rules! by_name {
    ($($module:ident: $type:ty,)*) => {
        $(pub mod $module {
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            pub fn serialize<S: Serializer>(one: &$type, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(one.name())
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let name = String::deserialize(from)?;
                let found = <$type>::ALL.into_iter().find(|one| one.name() == name);
                found.ok_or_else(|| D::Error::custom(format!("unknown name {name:?}")))
            }
        })*
    };
}

by_name! {
    unit: limit::Unit,
    kind: limit::Kind,
    policy: faults::OnStoreFailure,
    invariant: crate::checks::Invariant,
    scenario: crate::plan::Scenario,
}
