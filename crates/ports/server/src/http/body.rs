//! Reads bodies of requests into the memory that a port has for them.
//!
//! A body is charged for what has arrived, and until it was answered. When the memory is full, the body that is being read
//! longest makes room: it is the slowest. Large bodies share half of the memory, so that small ones always have the rest.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

use budget::{Budget, Reservation};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

/// Larger bodies share half of the memory.
const ORDINARY: usize = 64 * 1024;

/// How much of a body is read, judged by the head of its request.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimit {
    pub bytes: usize,
    /// What sets the limit, for the response.
    pub name: &'static str,
}

impl BodyLimit {
    pub const NOTHING: Self = Self { bytes: 0, name: "" };
}

pub(super) struct Bodies {
    timeout: Duration,
    memory: Arc<Budget>,
    last: Cell<u64>,
    /// The bodies that are being read, the oldest first.
    reading: RefCell<BTreeMap<u64, Partial>>,
}

/// The bytes of a body that have arrived, with their charge.
struct Partial {
    bytes: Vec<u8>,
    share: Reservation,
}

/// Why a body was not read: the status and the text of the response.
type NotRead = (StatusCode, String);

impl Bodies {
    pub(super) fn new(memory: Arc<Budget>, timeout: Duration) -> Self {
        Self { timeout, memory, last: Cell::default(), reading: RefCell::default() }
    }

    /// The whole body. Its bytes stay charged until their last copy is dropped.
    pub(super) async fn read(&self, body: Incoming, limit: BodyLimit) -> Result<Bytes, NotRead> {
        if body.is_end_stream() || limit.bytes == 0 {
            return Ok(Bytes::new());
        }
        // `content-length` is enough to reject a body.
        if body.size_hint().lower() > limit.bytes as u64 {
            return Err(too_large(limit));
        }
        let place = Place::new(self);
        timeout(self.timeout, self.read_all(&place, body, limit)).await.unwrap_or_else(|_| {
            let limit = self.timeout;
            let text = format!("Request Timeout: the body took longer than {limit:?} (HTTP_TIMEOUT)\n");
            Err((StatusCode::REQUEST_TIMEOUT, text))
        })
    }

    async fn read_all(
        &self,
        place: &Place<'_>,
        mut body: Incoming,
        limit: BodyLimit,
    ) -> Result<Bytes, NotRead> {
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                (StatusCode::BAD_REQUEST, format!("Bad Request: the body could not be read: {error}\n"))
            })?;
            if let Ok(data) = frame.into_data() {
                self.append(place.id, &data, length.unwrap_or(limit.bytes), limit)?;
            }
        }
        let partial = self.reading.borrow_mut().remove(&place.id);
        partial.map(Bytes::from_owner).ok_or_else(|| self.no_memory())
    }

    /// Adds data to a body of at most `whole` bytes.
    fn append(&self, id: u64, data: &[u8], whole: usize, limit: BodyLimit) -> Result<(), NotRead> {
        let mut reading = self.reading.borrow_mut();
        // Another one may have taken its memory.
        let mut own = reading.remove(&id).ok_or_else(|| self.no_memory())?;
        let length = own.bytes.len() + data.len();
        if length > limit.bytes {
            return Err(too_large(limit));
        }
        if own.bytes.capacity() < length {
            let capacity = rounded_up(length).min(whole.max(length));
            while !own.charge(capacity) {
                let oldest = reading.iter().find(|(_, other)| !own.is_large(capacity) || other.is_large(0));
                let oldest = oldest.map(|(oldest, _)| *oldest).filter(|oldest| *oldest < id);
                oldest.and_then(|oldest| reading.remove(&oldest)).ok_or_else(|| self.no_memory())?;
            }
            own.bytes.reserve_exact(capacity - own.bytes.len());
        }
        own.bytes.extend_from_slice(data);
        reading.insert(id, own);
        Ok(())
    }

    fn no_memory(&self) -> NotRead {
        let limit = self.memory.limit();
        let text = format!(
            "Service Unavailable: the bodies of this port have reached {limit} bytes (MEMORY_LIMIT)\n"
        );
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// The capacity for a body of this length. A large one grows in few steps: each leaves its smaller predecessor to the
/// allocator.
fn rounded_up(length: usize) -> usize {
    if length <= ORDINARY {
        return length.next_power_of_two();
    }
    let mut steps = std::iter::successors(Some(ORDINARY), |capacity| capacity.checked_mul(4));
    steps.find(|capacity| *capacity >= length).unwrap_or(length)
}

impl Partial {
    fn is_large(&self, capacity: usize) -> bool {
        self.bytes.capacity().max(capacity) > ORDINARY
    }

    /// Reserves memory; false if there is none.
    fn charge(&mut self, capacity: usize) -> bool {
        if self.is_large(capacity) { self.share.grant(capacity) } else { self.share.resize(capacity) }
    }
}

impl AsRef<[u8]> for Partial {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn too_large(BodyLimit { bytes, name }: BodyLimit) -> NotRead {
    (StatusCode::BAD_REQUEST, format!("Bad Request: the body is larger than {bytes} bytes ({name})\n"))
}

/// The place of a body among those that are being read.
struct Place<'b> {
    bodies: &'b Bodies,
    id: u64,
}

impl<'b> Place<'b> {
    fn new(bodies: &'b Bodies) -> Self {
        let id = bodies.last.get() + 1;
        bodies.last.set(id);
        let partial = Partial { bytes: Vec::new(), share: Reservation::new(&bodies.memory) };
        bodies.reading.borrow_mut().insert(id, partial);
        Self { bodies, id }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.bodies.reading.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: BodyLimit = BodyLimit { bytes: 1 << 20, name: "LIMIT" };

    fn bodies(memory: usize) -> Bodies {
        Bodies::new(Budget::new(memory), Duration::from_secs(1))
    }

    fn append(place: &Place<'_>, size: usize) -> bool {
        place.bodies.append(place.id, &vec![0; size], LIMIT.bytes, LIMIT).is_ok()
    }

    fn is_read(place: &Place<'_>) -> bool {
        place.bodies.reading.borrow().contains_key(&place.id)
    }

    #[test]
    fn the_body_that_is_read_longest_makes_room() {
        let bodies = bodies(4 * ORDINARY);
        let places: Vec<_> = (0..5).map(|_| Place::new(&bodies)).collect();
        assert!(places[..4].iter().all(|place| append(place, ORDINARY)), "four fit");
        assert!(append(&places[4], 100) && !is_read(&places[0]), "the first one makes room");
        assert!(!append(&places[0], 1), "and has ended");
        assert!(append(&places[3], 0) && is_read(&places[3]));
        assert!(append(&places[4], ORDINARY - 100) && is_read(&places[1]), "there is room");
        assert!(!append(&places[1], 1), "the oldest one has none to take");
    }

    #[test]
    fn large_bodies_leave_half_to_small_ones() {
        let bodies = bodies(16 * ORDINARY);
        let places: Vec<_> = (0..6).map(|_| Place::new(&bodies)).collect();
        assert!(append(&places[0], ORDINARY), "a small one is the oldest");
        assert!(
            places[1..3].iter().all(|place| append(place, 2 * ORDINARY)),
            "with a capacity of twice that"
        );
        assert!(append(&places[3], 2 * ORDINARY), "a large one takes the memory of a large one");
        assert!(is_read(&places[0]) && !is_read(&places[1]) && is_read(&places[2]));
        assert!(append(&places[4], ORDINARY) && is_read(&places[2]), "a small one has its half");
    }

    #[test]
    fn a_body_is_charged_until_its_last_copy_is_dropped() {
        let bodies = bodies(ORDINARY);
        let place = Place::new(&bodies);
        assert!(append(&place, ORDINARY));
        let held = Bytes::from_owner(bodies.reading.borrow_mut().remove(&place.id).unwrap());
        let other = Place::new(&bodies);
        let copy = held.clone();
        drop((held, place));
        assert!(!append(&other, 1));
        drop((copy, other));
        assert!(append(&Place::new(&bodies), 1));
    }
}
