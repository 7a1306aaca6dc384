//! The sampling decision for new traces, and random ids.

use std::{
    cell::RefCell,
    hash::{BuildHasher, RandomState},
};

use fastrand::Rng;

use super::headers::{SpanId, TraceId};

/// Samples a fraction of the traces by their id: every service with the same fraction samples the same traces, as the
/// Go service does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    /// The bound on bits 1 to 63 of the id, as in OpenTelemetry's SDKs.
    below: u64,
}

impl Sampler {
    /// A sampler of this fraction, from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the bound is that of Go's SDK; casts saturate"
    )]
    pub(super) fn new(share: f64) -> Self {
        let all = 1_u64 << 63;
        Self { below: if share >= 1.0 { all } else { (share * all as f64) as u64 } }
    }

    pub(super) fn takes(self, trace: TraceId) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "only the lower half is compared")]
        let lower = trace as u64;
        lower >> 1 < self.below
    }
}

pub(super) fn trace_id() -> TraceId {
    (u128::from(random()) << 64) | u128::from(random().max(1))
}

pub(super) fn span_id() -> SpanId {
    random().max(1)
}

pub(crate) fn uuid() -> String {
    let high = random();
    let low = random();
    let version = 0x4000 | (high & 0xfff);
    let variant = 0x8000 | (low >> 50);
    format!(
        "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        low & 0xffff_ffff_ffff
    )
}

/// Random enough for unique ids, not for secrets. The seed has the entropy of `RandomState`; that of `fastrand` is made
/// from the time and the thread, which replicas may share.
fn random() -> u64 {
    thread_local! {
        static RNG: RefCell<Rng> = RefCell::new(Rng::with_seed(RandomState::new().hash_one(0)));
    }
    RNG.with_borrow_mut(|rng| rng.u64(..))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;

    #[test]
    fn samples_the_fraction() {
        for (share, least, most) in [
            (0.0, 0, 0),
            (-1.0, 0, 0),
            (0.1, 800, 1200),
            (0.5, 4800, 5200),
            (1.0, 10_000, 10_000),
            (2.0, 10_000, 10_000),
        ] {
            let sampler = Sampler::new(share);
            let taken = (0..10_000).filter(|_| sampler.takes(trace_id())).count();
            assert!((least..=most).contains(&taken), "{taken} at {share}");
        }
    }

    #[test]
    fn the_bound_is_that_of_gos_sdk() {
        let half = Sampler::new(0.5);
        let upper = 7_u128 << 64;
        assert!(half.takes(upper | 0x7fff_ffff_ffff_ffff) && !half.takes(upper | 0x8000_0000_0000_0000));
        assert!(Sampler::new(1.0).takes(u128::MAX));
    }

    #[test]
    fn ids_are_unique_across_threads() {
        let threads: Vec<_> =
            (0..4).map(|_| thread::spawn(|| (0..1000).map(|_| span_id()).collect::<Vec<_>>())).collect();
        let numbers: BTreeSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(numbers.len(), 4000);
    }

    #[test]
    fn uuids_have_version_4() {
        for _ in 0..100 {
            let uuid = uuid();
            let parts: Vec<&str> = uuid.split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{uuid}");
            assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{uuid}");
        }
        assert_ne!(uuid(), uuid());
    }
}
