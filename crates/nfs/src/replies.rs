//! Replies to calls that must not be carried out twice. A client that has lost its connection sends its last calls again.
//!
//! 1. Each address has replies of its own, [`MOST`] at most: no client drives out those of another one.
//! 2. Only addresses to which something is shared have any (the caller sees to it): what a stranger sends is refused as often as it
//!    comes. There are [`ADDRESSES`] at most. The one that was silent for longest is forgotten, unless a call of it is under way.
//! 3. A call that comes again over another connection while it is under way waits for the reply, and is answered there: the first
//!    connection is gone, mostly.

use base::sync::{CondvarExt, MutexExt};
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Replies that are kept for an address: more than a client has calls under way.
const MOST: usize = 512;
/// Addresses for which replies are kept.
const ADDRESSES: usize = 256;
/// Bytes of a call that tell it from another one with the same number, beside its length.
const LOOKED_AT: usize = 512;
/// How often a call that waits for the reply of another one looks whether its client is still there.
const TICK: Duration = Duration::from_millis(500);

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
    /// It is being carried out for the same connection, which gets the reply.
    UnderWay,
    /// It was answered so.
    Answered(Vec<u8>),
}

/// What is known of a call.
enum State {
    /// It is carried out for this connection.
    UnderWay(SocketAddr),
    Answered(Vec<u8>),
}

/// The calls of one address.
#[derive(Default)]
struct Calls {
    states: HashMap<Key, State>,
    /// Answered, oldest first.
    order: VecDeque<Key>,
    /// When the last one came, as a count of calls.
    last: u64,
}

impl Calls {
    fn is_idle(&self) -> bool {
        self.states.len() == self.order.len()
    }
}

#[derive(Default)]
struct Kept {
    addresses: HashMap<IpAddr, Calls>,
    calls: u64,
}

impl Kept {
    /// The calls of an address. Others are forgotten if there are too many.
    fn of(&mut self, address: IpAddr) -> &mut Calls {
        if self.addresses.len() >= ADDRESSES && !self.addresses.contains_key(&address) {
            let idle = self.addresses.iter().filter(|(_, c)| c.is_idle());
            let oldest = idle.min_by_key(|(_, c)| c.last).map(|(a, _)| *a);
            if let Some(oldest) = oldest {
                self.addresses.remove(&oldest);
            }
        }
        self.calls += 1;
        let calls = self.addresses.entry(address).or_default();
        calls.last = self.calls;
        calls
    }

    fn forget(&mut self, key: Key) {
        if let Some(calls) = self.addresses.get_mut(&key.address) {
            calls.states.remove(&key);
        }
    }
}

/// The replies kept.
#[derive(Default)]
pub struct Replies {
    kept: Mutex<Kept>,
    /// A call is not under way any more.
    done: Condvar,
}

/// A call that is under way; forgotten if it is dropped without a reply.
pub struct Begun<'a> {
    replies: &'a Replies,
    key: Option<Key>,
}

impl Replies {
    /// A call has come over the connection `from`. Waits if it is under way for another connection, until `is_gone`.
    pub fn begin(&self, key: Key, from: SocketAddr, is_gone: &dyn Fn() -> bool) -> Seen {
        let mut kept = self.kept.acquire();
        loop {
            match kept.of(key.address).states.entry(key) {
                Entry::Occupied(e) => match e.get() {
                    State::Answered(reply) => return Seen::Answered(reply.clone()),
                    State::UnderWay(first) if *first == from || is_gone() => {
                        return Seen::UnderWay;
                    }
                    State::UnderWay(_) => {}
                },
                Entry::Vacant(e) => {
                    e.insert(State::UnderWay(from));
                    return Seen::Never;
                }
            }
            kept = self.done.wait_acquire_timeout(kept, TICK);
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
        let mut kept = self.replies.kept.acquire();
        let calls = kept.of(key.address);
        calls.states.insert(key, State::Answered(reply));
        calls.order.push_back(key);
        while calls.order.len() > MOST {
            if let Some(old) = calls.order.pop_front() {
                calls.states.remove(&old);
            }
        }
        drop(kept);
        self.replies.done.notify_all();
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.replies.kept.acquire().forget(key);
            self.replies.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn begin(r: &Replies, key: Key) -> Seen {
        r.begin(key, at("10.0.0.1:700"), &|| false)
    }

    #[test]
    fn a_call_is_carried_out_once() {
        let r = Replies::default();
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let key = Key::of(ip, 5, b"remove a");
        assert_eq!(begin(&r, key), Seen::Never);
        assert_eq!(begin(&r, key), Seen::UnderWay);
        r.begun(key).answered(vec![1]);
        assert_eq!(begin(&r, key), Seen::Answered(vec![1]));
        // Others with the same number are other calls.
        assert_eq!(begin(&r, Key::of(ip, 5, b"remove b")), Seen::Never);
        let other = Key::of("10.0.0.2".parse().unwrap(), 5, b"remove a");
        assert_eq!(begin(&r, other), Seen::Never);
        // One that has no reply, since the server panicked, is carried out again.
        let lost = Key::of(ip, 6, b"x");
        assert_eq!(begin(&r, lost), Seen::Never);
        drop(r.begun(lost));
        assert_eq!(begin(&r, lost), Seen::Never);
    }

    /// The connection over which it came first is dead.
    #[test]
    fn a_call_that_comes_again_is_answered_on_its_new_connection() {
        let r = Replies::default();
        let again = at("10.0.0.1:701");
        let key = Key::of(again.ip(), 5, b"remove a");
        assert_eq!(begin(&r, key), Seen::Never);
        assert_eq!(r.begin(key, again, &|| true), Seen::UnderWay, "it is gone");
        std::thread::scope(|s| {
            let waits = s.spawn(|| r.begin(key, again, &|| false));
            r.begun(key).answered(vec![7]);
            assert_eq!(waits.join().unwrap(), Seen::Answered(vec![7]));
        });
        // It is carried out by whoever waits if the first one has no reply.
        let key = Key::of(again.ip(), 6, b"remove b");
        assert_eq!(begin(&r, key), Seen::Never);
        std::thread::scope(|s| {
            let waits = s.spawn(|| r.begin(key, again, &|| false));
            drop(r.begun(key));
            assert_eq!(waits.join().unwrap(), Seen::Never);
        });
    }

    #[test]
    fn old_replies_go_but_not_those_of_others() {
        let r = Replies::default();
        let ip: IpAddr = "::1".parse().unwrap();
        let other = Key::of("::2".parse().unwrap(), 1, b"");
        assert_eq!(begin(&r, other), Seen::Never);
        r.begun(other).answered(vec![2]);
        for xid in 0..MOST as u32 + 10 {
            let key = Key::of(ip, xid, b"");
            assert_eq!(begin(&r, key), Seen::Never);
            r.begun(key).answered(Vec::new());
        }
        assert_eq!(begin(&r, Key::of(ip, 10, b"")), Seen::Answered(Vec::new()));
        assert_eq!(begin(&r, Key::of(ip, 9, b"")), Seen::Never);
        assert_eq!(begin(&r, other), Seen::Answered(vec![2]));
        // Of very many addresses the one that was silent for longest goes; one that waits for a reply stays.
        for n in 0..ADDRESSES as u32 {
            let key = Key::of(IpAddr::V4(n.into()), 1, b"");
            assert_eq!(begin(&r, key), Seen::Never);
            r.begun(key).answered(Vec::new());
        }
        assert!(r.kept.acquire().addresses.len() <= ADDRESSES);
        assert_eq!(begin(&r, other), Seen::Never);
        assert_eq!(begin(&r, Key::of(ip, 9, b"")), Seen::UnderWay);
    }
}
