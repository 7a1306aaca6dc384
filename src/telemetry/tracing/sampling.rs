//! Lots: which traces that begin here are recorded, and what they are called.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
};

use super::headers::{SpanId, TraceId};

/// Takes a share of the traces, by their number: each service with the same share takes the same ones, the
/// Go service among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    /// Of the trace's lower 63 bits, shifted by one as OpenTelemetry's SDKs do: what lies below is taken.
    below: u64,
}

impl Sampler {
    /// Takes this share, from 0 to 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the bound is that of Go's SDK, to the bit; a cast saturates"
    )]
    pub(super) fn new(share: f64) -> Self {
        let all = 1_u64 << 63;
        Self { below: if share >= 1.0 { all } else { (share * all as f64) as u64 } }
    }

    pub(super) fn takes(self, trace: TraceId) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what is looked at")]
        let lower = trace as u64;
        lower >> 1 < self.below
    }
}

/// A number for a trace that begins here.
pub(super) fn trace_id() -> TraceId {
    (u128::from(random()) << 64) | u128::from(random().max(1))
}

/// A number for a span.
pub(super) fn span_id() -> SpanId {
    random().max(1)
}

/// A UUID of version 4.
pub(super) fn uuid() -> String {
    let (high, low) = (random(), random());
    let (version, variant) = (0x4000 | (high & 0xfff), 0x8000 | (low >> 50));
    format!(
        "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        low & 0xffff_ffff_ffff
    )
}

/// Random enough for names that must not meet; each thread has its own beginning. Not for secrets.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    // SplitMix64: a Weyl sequence, mixed.
    let mut mixed = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(mixed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;

    #[test]
    fn a_share_of_the_traces_is_taken() {
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
    fn the_share_is_cut_where_gos_sdk_cuts_it() {
        let half = Sampler::new(0.5);
        let upper = 7_u128 << 64;
        assert!(half.takes(upper | 0x7fff_ffff_ffff_ffff) && !half.takes(upper | 0x8000_0000_0000_0000));
        assert!(Sampler::new(1.0).takes(u128::MAX));
    }

    #[test]
    fn numbers_do_not_meet_on_any_thread() {
        let threads: Vec<_> =
            (0..4).map(|_| thread::spawn(|| (0..1000).map(|_| span_id()).collect::<Vec<_>>())).collect();
        let numbers: BTreeSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(numbers.len(), 4000);
    }

    #[test]
    fn a_uuid_is_of_version_4() {
        for _ in 0..100 {
            let uuid = uuid();
            let parts: Vec<&str> = uuid.split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12], "{uuid}");
            assert!(parts[2].starts_with('4') && "89ab".contains(&parts[3][..1]), "{uuid}");
        }
        assert_ne!(uuid(), uuid());
    }
}
