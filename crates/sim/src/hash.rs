//! The hash of a run, over everything that happened in it.

use env_sim::Event;

/// Sums up everything that happened, for comparing runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(pub u64);

impl TraceHash {
    pub fn bytes(&mut self, b: &[u8]) {
        for c in b.chunks(8) {
            let mut w = [0; 8];
            w[..c.len()].copy_from_slice(c);
            self.0 = (self.0 ^ u64::from_le_bytes(w)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.0 ^= self.0 >> 32;
        }
    }

    pub fn events(&mut self, events: &[Event]) {
        for e in events {
            let (kind, disk, n) = match e {
                Event::Write { disk, offset, data } => {
                    self.bytes(data);
                    (1, *disk, *offset)
                }
                Event::Flush { disk, begun } => (2, *disk, *begun as u64),
                Event::Rot { disk, offset, data } => {
                    self.bytes(data);
                    (3, *disk, *offset)
                }
            };
            self.bytes(&[kind, disk as u8]);
            self.bytes(&n.to_le_bytes());
        }
    }
}
