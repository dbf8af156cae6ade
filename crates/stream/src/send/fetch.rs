//! Reading the data of a stream ahead of writing it: several batches at a time on other threads, in order.
//!
//! 1. At most [`IN_FLIGHT`] bytes are read and not written yet, or one batch.
//! 2. Batches are taken in the order in which they were added.
//! 3. Every batch is answered, also if its thread panics or the pool is closed: with an error then.

use super::emit::{sends_embedded, splits, stored_form};
use super::item::{Got, Item};
use base::sync::{CondvarExt, MutexExt};
use base::{Error, Result};
use disk::stream::feature;
use disk::BlkPtr;
use dmu::Dmu;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use zio::{Crypt, InUse, Lease, ReadSpec, Scope, Whole, Zio};

/// Bytes of data of one batch. A stream of 256 MiB took 209 ms cold with 256 KiB, 243 ms with 1 MiB (medians of twelve in
/// turn, two cores).
const BATCH_BYTES: usize = 256 << 10;
/// Items of one batch.
const BATCH_ITEMS: usize = 512;
/// Bytes of one stream that are read ahead.
const IN_FLIGHT: usize = 16 << 20;

/// How the data of a block are wanted.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Stored,
}

/// What has to be read for an item.
fn wanted(item: &Item, features: u64) -> Option<(BlkPtr, Form)> {
    let form = |stored| if stored { Form::Stored } else { Form::Plain };
    match item {
        Item::Data { bp, block_size, .. } => match sends_embedded(bp, features) {
            true => None,
            false => {
                let stored = stored_form(bp, features) && !splits(*block_size, features);
                Some((*bp, form(stored)))
            }
        },
        Item::Spill { bp, .. } => Some((*bp, form(features & feature::RAW != 0))),
        _ => None,
    }
}

/// The results of a batch, one for each block.
#[derive(Default)]
struct Slot {
    done: Mutex<Option<Vec<Result<Got>>>>,
    ready: Condvar,
}

impl Slot {
    /// The results, as soon as they are there.
    fn wait(&self) -> Vec<Result<Got>> {
        let mut done = self.done.acquire();
        loop {
            match done.take() {
                Some(results) => return results,
                None => done = self.ready.wait_acquire(done),
            }
        }
    }
}

/// Answers a batch when dropped, if nobody has.
struct Answering(Arc<Slot>);

impl Answering {
    fn with(&self, results: Vec<Result<Got>>) {
        *self.0.done.acquire() = Some(results);
        self.0.ready.notify_all();
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut done = self.0.done.acquire();
        if done.is_none() {
            *done = Some(Vec::new());
            self.0.ready.notify_all();
        }
    }
}

/// Items whose data are being read.
struct Batch {
    items: Vec<Item>,
    /// For each item: whether it has data.
    has_data: Vec<bool>,
    bytes: usize,
    slot: Option<Arc<Slot>>,
}

/// A queue of items, the data of the first ones being read.
pub(super) struct Fetcher<'a> {
    dmu: &'a Arc<Dmu>,
    crypt: Crypt,
    features: u64,
    /// Nothing is read: the stream is only measured.
    dry: bool,
    next: Vec<Item>,
    next_bytes: usize,
    queue: VecDeque<Batch>,
    in_flight: usize,
}

/// Who takes items with their data.
pub(super) type Take<'t> = dyn FnMut(&Item, Option<&Got>) -> Result<()> + 't;

impl<'a> Fetcher<'a> {
    pub fn new(dmu: &'a Arc<Dmu>, crypt: Crypt, features: u64, dry: bool) -> Fetcher<'a> {
        Fetcher {
            dmu,
            crypt,
            features,
            dry,
            next: Vec::new(),
            next_bytes: 0,
            queue: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// Adds an item; `take` gets items whose turn it is.
    pub fn add(&mut self, item: Item, take: &mut Take) -> Result<()> {
        if self.dry {
            return take(&item, None);
        }
        self.next_bytes += wanted(&item, self.features).map_or(0, |(bp, _)| bp.lsize());
        self.next.push(item);
        if self.next_bytes >= BATCH_BYTES || self.next.len() >= BATCH_ITEMS {
            self.start();
            while self.in_flight > IN_FLIGHT && self.queue.len() > 1 {
                self.finish_one(take)?;
            }
        }
        Ok(())
    }

    /// Gives all that is left to `take`.
    pub fn finish(&mut self, take: &mut Take) -> Result<()> {
        self.start();
        while !self.queue.is_empty() {
            self.finish_one(take)?;
        }
        Ok(())
    }

    /// Has the next batch read.
    fn start(&mut self) {
        if self.next.is_empty() {
            return;
        }
        let items = std::mem::take(&mut self.next);
        let bytes = std::mem::take(&mut self.next_bytes);
        let wants: Vec<_> = items.iter().map(|i| wanted(i, self.features)).collect();
        let has_data = wants.iter().map(Option::is_some).collect();
        let wants: Vec<_> = wants.into_iter().flatten().collect();
        let slot = (!wants.is_empty()).then(|| self.read(wants));
        self.in_flight += bytes;
        self.queue.push_back(Batch {
            items,
            has_data,
            bytes,
            slot,
        });
    }

    /// Reads on another thread if one is to spare, here otherwise.
    fn read(&self, wants: Vec<(BlkPtr, Form)>) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        let (zio, crypt, wants) = (self.dmu.zio.clone(), self.crypt.clone(), Arc::new(wants));
        let lease = zio.lease();
        let (answer, there) = (Answering(slot.clone()), wants.clone());
        let job = move || answer.with(read_all(&zio, &crypt, &there, lease));
        if self.dmu.later(job) {
            return slot;
        }
        // The job was dropped, and has answered that it is lost.
        let slot = Arc::new(Slot::default());
        let results = read_all(&self.dmu.zio, &self.crypt, &wants, lease);
        Answering(slot.clone()).with(results);
        slot
    }

    fn finish_one(&mut self, take: &mut Take) -> Result<()> {
        let Some(batch) = self.queue.pop_front() else {
            return Ok(());
        };
        self.in_flight -= batch.bytes;
        let mut got = match &batch.slot {
            None => Vec::new(),
            Some(slot) => slot.wait(),
        }
        .into_iter();
        for (item, has_data) in batch.items.iter().zip(&batch.has_data) {
            match has_data {
                false => take(item, None)?,
                true => {
                    let lost = || Err(Error::damaged("the pool was closed"));
                    let data = got.next().unwrap_or_else(lost)?;
                    take(item, Some(&data))?;
                }
            }
        }
        Ok(())
    }
}

/// Reads blocks, those of one form in one batch.
fn read_all(zio: &Zio, crypt: &Crypt, wants: &[(BlkPtr, Form)], lease: Lease) -> Vec<Result<Got>> {
    let of = |form| -> Vec<BlkPtr> {
        let these = wants.iter().filter(|(_, f)| *f == form);
        these.map(|(bp, _)| *bp).collect()
    };
    // What is read for a stream is not likely to be read again.
    let spec = ReadSpec {
        in_use: InUse::Since(lease),
        keep: Scope::Metadata,
        whole: Whole::All,
        ..ReadSpec::with_key(crypt)
    };
    let mut plain = zio.read_many(&of(Form::Plain), &spec).into_iter();
    let as_stored = of(Form::Stored);
    let stored = zio.read_raw_many(&as_stored, lease);
    // The key is there if the stream is not raw. What is decrypted is compressed still, with the padding to sectors.
    let mut stored = stored
        .into_iter()
        .zip(&as_stored)
        .map(|(raw, bp)| match crypt.key() {
            Some(key) if bp.uses_crypt() => zio.decrypt(bp, key, raw?),
            _ => raw,
        });
    let lost = || Error::damaged("a read was lost");
    wants
        .iter()
        .map(|(_, form)| match form {
            Form::Plain => plain.next().unwrap_or_else(|| Err(lost())).map(Got::Plain),
            Form::Stored => stored
                .next()
                .unwrap_or_else(|| Err(lost()))
                .map(Got::Stored),
        })
        .collect()
}
