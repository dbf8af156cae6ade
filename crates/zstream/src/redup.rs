//! `zstream redup`: makes a stream of `zfs send -D` one without references to earlier data, which every receiver takes.

use crate::records::copy;
use crate::{error, open, output};
use cli::args::Parsed;
use cli::run::{Fail, Outcome};
use disk::stream::{feature, Begin, Record, Write, WriteByRef};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;

/// Bytes of memory that OpenZFS's program counts for a block that may be referred to.
const ENTRY: u64 = 40;

/// A block: guid of its snapshot, object, offset.
type Block = (u64, u64, u64);

/// Where the data of the blocks are.
struct Blocks {
    file: File,
    /// The records, and the offsets of the payloads in the file.
    table: HashMap<Block, (Write, u64)>,
}

impl Blocks {
    /// The data that a reference leads to, as a record of its own.
    fn find(&self, r: &WriteByRef) -> Result<(Record, Vec<u8>), Fail> {
        let key = (r.ref_guid, r.ref_object, r.ref_offset);
        let Some((write, at)) = self.table.get(&key) else {
            return error(format!(
                "Error: object {} offset {} refers to data that is not in the stream",
                r.object, r.offset
            ));
        };
        let record = Record::Write(Write {
            object: r.object,
            offset: r.offset,
            to_guid: r.to_guid,
            ..write.clone()
        });
        // The size was bounded when the record was read.
        let mut payload = vec![0; record.payload() as usize];
        match self.file.read_exact_at(&mut payload, *at) {
            Ok(()) => Ok((record, payload)),
            Err(e) => error(format!("Error while reading file: {}", base::io_text(&e))),
        }
    }
}

pub fn run(args: &Parsed) -> Outcome {
    let [path] = args.operands.as_slice() else {
        return Err(Fail::Usage(String::new()));
    };
    let out = output()?;
    let file = open(path)?;
    let Ok(again) = file.try_clone() else {
        return error(format!("Error while opening file '{path}'"));
    };
    let mut blocks = Blocks {
        file,
        table: HashMap::new(),
    };
    let (mut records, mut references) = (0u64, 0u64);
    let from = BufReader::with_capacity(1 << 18, again);
    copy(from, out, |item, swapped, out| {
        records += 1;
        match item.record {
            Record::Begin(begin) => {
                let plain = Record::Begin(Begin {
                    features: begin.features & !(feature::DEDUP | feature::DEDUP_PROPS),
                    ..begin
                });
                out.put(&plain.encode(swapped), &item.payload, swapped)
            }
            Record::WriteByRef(r) => {
                references += 1;
                let (record, payload) = blocks.find(&r)?;
                out.put(&record.encode(swapped), &payload, swapped)
            }
            record => {
                if let Record::Write(write) = record {
                    let key = (write.to_guid, write.object, write.offset);
                    blocks.table.insert(key, (write, item.payload_at));
                }
                out.put(&item.header, &item.payload, swapped)
            }
        }
    })?;
    if args.has("v") {
        let memory = base::sizes::nice(ENTRY * blocks.table.len() as u64, false);
        eprintln!(
            "converted stream with {records} total records, including {references} dedup records, \
             using {memory}B memory."
        );
    }
    Ok(0)
}
