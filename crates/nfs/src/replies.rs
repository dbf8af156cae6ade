//! Replies to calls that must not be carried out twice. A client that has lost its connection sends its last calls again.

use base::sync::MutexExt;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock};

/// Replies that are kept: more than all clients have calls under way.
const MOST: usize = 4096;
/// Bytes of a call that tell it from another one with the same number, beside its length.
const LOOKED_AT: usize = 512;

/// A call, as its client numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    address: IpAddr,
    xid: u32,
    content: u64,
}

impl Key {
    /// The key of a call. Its port is no part of it: the client may have connected again.
    pub fn of(address: IpAddr, xid: u32, message: &[u8]) -> Key {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let mut h = SEED.get_or_init(RandomState::new).build_hasher();
        message.len().hash(&mut h);
        message[..message.len().min(LOOKED_AT)].hash(&mut h);
        Key {
            address,
            xid,
            content: h.finish(),
        }
    }
}

/// Whether a call came before.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// It did not: it is under way from now on.
    Never,
    /// It is being carried out.
    UnderWay,
    /// It was answered so.
    Answered(Vec<u8>),
}

#[derive(Default)]
struct Kept {
    /// None: under way.
    replies: HashMap<Key, Option<Vec<u8>>>,
    /// Answered, oldest first.
    order: VecDeque<Key>,
}

/// The replies kept.
#[derive(Default)]
pub struct Replies(Mutex<Kept>);

/// A call that is under way; forgotten if it is dropped without a reply.
pub struct Begun<'a> {
    replies: &'a Replies,
    key: Option<Key>,
}

impl Replies {
    /// A call has come.
    pub fn begin(&self, key: Key) -> Seen {
        match self.0.acquire().replies.entry(key) {
            Entry::Occupied(e) => match e.get() {
                Some(reply) => Seen::Answered(reply.clone()),
                None => Seen::UnderWay,
            },
            Entry::Vacant(e) => {
                e.insert(None);
                Seen::Never
            }
        }
    }

    /// It is carried out by the caller.
    pub fn begun(&self, key: Key) -> Begun<'_> {
        Begun {
            replies: self,
            key: Some(key),
        }
    }
}

impl Begun<'_> {
    /// It was answered so.
    pub fn answered(mut self, reply: Vec<u8>) {
        let Some(key) = self.key.take() else { return };
        let kept = &mut *self.replies.0.acquire();
        kept.replies.insert(key, Some(reply));
        kept.order.push_back(key);
        while kept.order.len() > MOST {
            if let Some(old) = kept.order.pop_front() {
                kept.replies.remove(&old);
            }
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.replies.0.acquire().replies.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_carried_out_once() {
        let r = Replies::default();
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let key = Key::of(ip, 5, b"remove a");
        assert_eq!(r.begin(key), Seen::Never);
        assert_eq!(r.begin(key), Seen::UnderWay);
        r.begun(key).answered(vec![1]);
        assert_eq!(r.begin(key), Seen::Answered(vec![1]));
        // Others with the same number are other calls.
        assert_eq!(r.begin(Key::of(ip, 5, b"remove b")), Seen::Never);
        assert_eq!(
            r.begin(Key::of("10.0.0.2".parse().unwrap(), 5, b"remove a")),
            Seen::Never
        );
        // One that has no reply, since the server panicked, is carried out again.
        let lost = Key::of(ip, 6, b"x");
        assert_eq!(r.begin(lost), Seen::Never);
        drop(r.begun(lost));
        assert_eq!(r.begin(lost), Seen::Never);
    }

    #[test]
    fn old_replies_go() {
        let r = Replies::default();
        let ip: IpAddr = "::1".parse().unwrap();
        for xid in 0..MOST as u32 + 10 {
            let key = Key::of(ip, xid, b"");
            assert_eq!(r.begin(key), Seen::Never);
            r.begun(key).answered(Vec::new());
        }
        assert_eq!(r.0.acquire().replies.len(), MOST);
        assert_eq!(r.begin(Key::of(ip, 9, b"")), Seen::Never);
        assert_eq!(r.begin(Key::of(ip, 10, b"")), Seen::Answered(Vec::new()));
    }
}
