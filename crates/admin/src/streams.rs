//! Streams in progress: the datasets they use, the processes that send and receive them, and ending them from
//! outside.

use base::sync::MutexExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The streams of one pool.
#[derive(Default)]
pub struct Streams {
    /// By object of the dataset that is filled.
    list: Mutex<BTreeMap<u64, Filling>>,
}

/// A dataset is filled by a stream.
struct Filling {
    ended: Arc<AtomicBool>,
    /// It is of a user other than the owner.
    of_user: bool,
}

/// Who has a stream of the pool sent or received.
#[derive(Default)]
pub struct Users {
    next: AtomicU64,
    list: Mutex<BTreeMap<u64, (User, Arc<AtomicBool>)>>,
}

/// A process, what it has sent or received, and which of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Process id.
    pub pid: i32,
    /// Full name of the dataset or snapshot.
    pub name: String,
    /// Sent or received.
    pub way: Way,
}

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The stream leaves the pool.
    Sent,
    /// The stream is written to the pool.
    Received,
}

/// A user, until this is dropped.
pub struct Listed<'a> {
    users: &'a Users,
    id: u64,
    ended: Arc<AtomicBool>,
}

impl Listed<'_> {
    /// The flag that asks the command to end, for [`crate::cancel::ended_by`].
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.ended.clone()
    }
}

impl Users {
    /// Notes a process for as long as the result lives.
    pub fn enter(&self, pid: i32, name: &str, way: Way) -> Listed<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let user = User {
            pid,
            name: name.to_string(),
            way,
        };
        let ended = Arc::new(AtomicBool::new(false));
        self.list.acquire().insert(id, (user, ended.clone()));
        Listed {
            users: self,
            id,
            ended,
        }
    }

    /// Whether streams go that way.
    pub fn any(&self, way: Way) -> bool {
        self.list.acquire().values().any(|(u, _)| u.way == way)
    }

    /// Asks the commands of all streams to end, whatever they wait for; whether there are any.
    pub fn end_all(&self) -> bool {
        let list = self.list.acquire();
        for (_, ended) in list.values() {
            ended.store(true, Ordering::Relaxed);
        }
        !list.is_empty()
    }

    /// All that go that way, in lines for people; `command` names a process.
    pub fn lines(&self, way: Way, command: &dyn Fn(i32) -> Option<String>) -> Vec<String> {
        let list: Vec<User> = self
            .list
            .acquire()
            .values()
            .map(|(u, _)| u.clone())
            .collect();
        let line = |u: &User| {
            let what = match way {
                Way::Sent => "stream being sent",
                Way::Received => "stream being received",
            };
            let by = match command(u.pid) {
                Some(c) => format!("{} ({c})", u.pid),
                None => u.pid.to_string(),
            };
            format!("in use by {by}: {}: {what}", u.name)
        };
        list.iter().filter(|u| u.way == way).map(line).collect()
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.users.list.acquire().remove(&self.id);
    }
}

/// A stream under way; it is over when this is dropped.
pub struct UnderWay {
    streams: Arc<Streams>,
    object: u64,
    ended: Arc<AtomicBool>,
}

impl Streams {
    /// A stream begins to fill a dataset, `of_user`: that of a user other than the owner. `None` if
    /// another one does.
    pub fn begin(self: &Arc<Self>, object: u64, of_user: bool) -> Option<UnderWay> {
        let mut list = self.list.acquire();
        if list.contains_key(&object) {
            return None;
        }
        let ended = Arc::new(AtomicBool::new(false));
        let filling = Filling {
            ended: ended.clone(),
            of_user,
        };
        list.insert(object, filling);
        Some(UnderWay {
            streams: self.clone(),
            object,
            ended,
        })
    }

    /// Whether a stream fills the dataset.
    pub fn is_busy(&self, object: u64) -> bool {
        self.list.acquire().contains_key(&object)
    }

    /// The datasets that are filled.
    pub fn objects(&self) -> Vec<u64> {
        self.list.acquire().keys().copied().collect()
    }

    /// Whether there is any.
    pub fn any(&self) -> bool {
        !self.list.acquire().is_empty()
    }

    /// The datasets that are filled by users other than the owner.
    pub fn of_users(&self) -> Vec<u64> {
        let list = self.list.acquire();
        let of_users = list.iter().filter(|(_, f)| f.of_user);
        of_users.map(|(object, _)| *object).collect()
    }

    /// Asks the stream that fills a dataset to end.
    pub fn end(&self, object: u64) {
        if let Some(f) = self.list.acquire().get(&object) {
            f.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Asks all to end: each does before its next record, and while it waits for one.
    pub fn end_all(&self) {
        for f in self.list.acquire().values() {
            f.ended.store(true, Ordering::Relaxed);
        }
    }
}

impl UnderWay {
    /// The flag that asks it to end, for [`crate::cancel::ended_by`].
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.ended.clone()
    }

    /// Whether it is asked to end.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.streams.list.acquire().remove(&self.object);
    }
}
