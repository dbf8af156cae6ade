//! `zstream dump`: what is in a stream, in the words and the layout of OpenZFS's program.

use crate::records::Records;
use cli::run::{Fail, Outcome};
use codec::checksum::Fletcher4;
use disk::stream::{self as format, stored_checksum, Begin, Record, CHECKSUM_AT, RECORD};
use disk::NvList;
use std::io::{Read, Write};

/// What is shown.
pub struct Options {
    /// 1: each record; 2: also the running checksums.
    pub verbose: usize,
    /// Checksums are not verified.
    pub no_checksums: bool,
    /// The payloads, too.
    pub data: bool,
}

/// Types of records whose number is above this one are unknown.
const LAST_TYPE: u32 = 10;
/// Types in the order of the summary.
const SUMMARY: [(&str, usize); 9] = [
    ("BEGIN", 0),
    ("END", 5),
    ("OBJECT", 1),
    ("FREEOBJECTS", 2),
    ("WRITE", 3),
    ("WRITE_BYREF", 6),
    ("WRITE_EMBEDDED", 8),
    ("FREE", 4),
    ("SPILL", 7),
];

struct Dump<'a, R> {
    from: Records<R>,
    options: &'a Options,
    out: &'a mut dyn Write,
    sum: Fletcher4,
    /// The sums of everything before the current record.
    before: [u64; 4],
    /// Records and bytes of payload of each type.
    counts: [(u64, u64); LAST_TYPE as usize + 1],
    feature_flags: u64,
}

/// Shows the stream that `from` gives. The status is 1 if it is none, or a record is of an unknown type.
pub fn dump(from: impl Read, options: &Options, out: &mut dyn Write) -> Outcome {
    let mut dump = Dump {
        from: Records::new(from),
        options,
        out,
        sum: Fletcher4::new(false),
        before: [0; 4],
        counts: Default::default(),
        feature_flags: 0,
    };
    dump.run()
}

fn words(sum: &[u64; 4]) -> String {
    sum.map(|w| format!("{w:x}")).join("/")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl<R: Read> Dump<'_, R> {
    fn run(&mut self) -> Outcome {
        let mut first = true;
        while let Some(header) = self.from.header()? {
            if !self.verify(&header)? {
                break;
            }
            if first {
                if !self.from.learn(&header) {
                    eprintln!("Invalid stream (bad magic number)");
                    return Ok(1);
                }
                if self.from.is_swapped() && !self.options.no_checksums {
                    self.sum = Fletcher4::new(true);
                    self.sum.update(&header);
                }
                first = false;
            }
            if !self.record(&header)? {
                return Ok(1);
            }
        }
        self.summary()?;
        Ok(0)
    }

    /// Adds a record to the running checksum. False: it does not match.
    fn verify(&mut self, header: &[u8; RECORD]) -> Result<bool, Fail> {
        if self.options.no_checksums {
            return Ok(true);
        }
        self.before = self.sum.words();
        let (body, stored) = header.split_at(CHECKSUM_AT);
        self.sum.update(body);
        let want = stored_checksum(header, self.from.is_swapped());
        let have = self.sum.words();
        if want != [0; 4] && want != have {
            eprintln!("invalid checksum");
            writeln!(self.out, "Incorrect checksum in record header.")?;
            writeln!(self.out, "Expected checksum = {}", words(&have))?;
            return Ok(false);
        }
        self.sum.update(stored);
        Ok(true)
    }

    /// Shows a record and takes its payload. False: nothing can be told of what follows.
    fn record(&mut self, header: &[u8; RECORD]) -> Result<bool, Fail> {
        let swapped = self.from.is_swapped();
        let mut kind = [0; 4];
        kind.copy_from_slice(&header[..4]);
        let kind = match swapped {
            true => u32::from_be_bytes(kind),
            false => u32::from_le_bytes(kind),
        };
        if kind > LAST_TYPE {
            writeln!(self.out, "INVALID record found: type {kind:#x}")?;
            writeln!(self.out, "Aborting.")?;
            return Ok(false);
        }
        let record = match Record::decode(header, swapped) {
            Ok(record) => record,
            Err(e) => {
                self.out.flush()?;
                eprintln!("{e}");
                return Ok(false);
            }
        };
        let (count, bytes) = &mut self.counts[kind as usize];
        *count += 1;
        *bytes += record.payload();
        match &record {
            Record::Begin(begin) => return self.begin(begin),
            Record::End(end) => {
                if !self.options.no_checksums && end.checksum != self.before {
                    let before = words(&self.before);
                    writeln!(
                        self.out,
                        "Expected checksum differs from checksum in stream."
                    )?;
                    writeln!(self.out, "Expected checksum = {before}")?;
                }
                writeln!(self.out, "END checksum = {}", words(&end.checksum))?;
                self.sum = Fletcher4::new(swapped);
            }
            record if self.options.verbose > 0 || self.options.data => {
                let line = self.line(record);
                writeln!(self.out, "{line}")?;
            }
            _ => {}
        }
        if let Some(payload) = self.from.payload(record.payload())? {
            if !self.options.no_checksums {
                self.sum.update(&payload);
            }
            if self.options.data {
                self.block(&payload)?;
            }
        }
        if self.options.verbose > 1 || self.options.data {
            let sum = stored_checksum(header, swapped);
            writeln!(self.out, "    checksum = {}", words(&sum))?;
        }
        Ok(true)
    }

    fn begin(&mut self, begin: &Begin) -> Result<bool, Fail> {
        self.feature_flags = begin.features;
        let out = &mut self.out;
        writeln!(out, "BEGIN record")?;
        writeln!(out, "\thdrtype = {}", begin.header_type.number())?;
        writeln!(out, "\tfeatures = {:x}", begin.features)?;
        writeln!(out, "\tmagic = {:x}", format::MAGIC)?;
        writeln!(out, "\tcreation_time = {:x}", begin.creation_time)?;
        writeln!(out, "\ttype = {}", begin.objset_type)?;
        writeln!(out, "\tflags = {:#x}", begin.flags)?;
        writeln!(out, "\ttoguid = {:x}", begin.to_guid)?;
        writeln!(out, "\tfromguid = {:x}", begin.from_guid)?;
        write!(out, "\ttoname = ")?;
        out.write_all(&begin.to_name)?;
        writeln!(out, "\n\tpayloadlen = {}", begin.list_len)?;
        if self.options.verbose > 0 || self.options.data {
            writeln!(out)?;
        }
        if begin.list_len == 0 {
            return Ok(true);
        }
        if let Some(payload) = self.from.payload(u64::from(begin.list_len))? {
            if !self.options.no_checksums {
                self.sum.update(&payload);
            }
            if let Ok(list) = NvList::unpack(&payload) {
                self.out.write_all(list.print().as_bytes())?;
            }
        }
        Ok(true)
    }

    /// A record in one line.
    fn line(&self, record: &Record) -> String {
        match record {
            Record::Begin(_) | Record::End(_) => String::new(),
            Record::Object(r) => {
                let warning = match self.feature_flags & format::feature::RAW != 0 {
                    true if r.bonus_len > r.raw_bonus_len => format!(
                        "Warning: Object {} has bonuslen = {} > raw_bonuslen = {}\n\n",
                        r.object, r.bonus_len, r.raw_bonus_len
                    ),
                    _ => String::new(),
                };
                format!(
                    "{warning}OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} \
                     raw_bonuslen = {} flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
                    r.object, r.obj_type, r.bonus_type, r.block_size, r.bonus_len, r.slots, r.raw_bonus_len,
                    r.flags, r.max_block, r.indirect_shift, r.levels, r.block_pointers
                )
            }
            Record::FreeObjects(r) => {
                format!("FREEOBJECTS firstobj = {} numobjs = {}", r.first, r.count)
            }
            Record::Write(r) => format!(
                "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
                 logical_size = {} compressed_size = {} payload_size = {} props = {:x} salt = {} iv = {} mac = {}",
                r.object, r.obj_type, r.checksum_type, r.compression, r.flags, r.offset, r.logical_size,
                r.compressed_size, record.payload(), r.key[4], hex(&r.salt), hex(&r.iv), hex(&r.mac)
            ),
            Record::WriteByRef(r) => format!(
                "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
                 refguid = {:x} refobject = {} refoffset = {}",
                r.object, r.checksum_type, r.key[4], r.offset, r.length, r.to_guid, r.ref_guid, r.ref_object,
                r.ref_offset
            ),
            Record::Free(r) => format!(
                "FREE object = {} offset = {} length = {}",
                r.object, r.offset, r.length as i64
            ),
            Record::Spill(r) => format!(
                "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
                 payload_size = {} salt = {} iv = {} mac = {}",
                r.object, r.length, r.flags, r.compression, r.compressed_size, record.payload(), hex(&r.salt),
                hex(&r.iv), hex(&r.mac)
            ),
            Record::WriteEmbedded(r) => format!(
                "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} \
                 psize = {}",
                r.object, r.offset, r.length, r.to_guid, r.compression, r.etype, r.lsize, r.psize
            ),
            Record::ObjectRange(r) => format!(
                "OBJECT_RANGE firstobj = {} numslots = {} flags = {} salt = {} iv = {} mac = {}",
                r.first, r.slots, r.flags, hex(&r.salt), hex(&r.iv), hex(&r.mac)
            ),
            Record::Redact(r) => format!(
                "REDACT object = {} offset = {} length = {}",
                r.object, r.offset, r.length
            ),
        }
    }

    /// Bytes in lines of sixteen, as hexadecimal digits and as text.
    fn block(&mut self, bytes: &[u8]) -> Result<(), Fail> {
        for line in bytes.chunks(16) {
            let (mut digits, mut text) = (String::new(), String::new());
            for (i, b) in line.iter().enumerate() {
                if i % 4 == 0 {
                    digits.push(' ');
                    text.push(' ');
                }
                digits.push_str(&format!("{b:02x} "));
                text.push(match b {
                    b' '..=b'~' => char::from(*b),
                    _ => '.',
                });
            }
            writeln!(self.out, "{digits:53}{text}")?;
        }
        Ok(())
    }

    fn summary(&mut self) -> Result<(), Fail> {
        let out = &mut self.out;
        writeln!(out, "SUMMARY:")?;
        for (name, kind) in SUMMARY {
            let (count, bytes) = self.counts[kind];
            writeln!(out, "\tTotal DRR_{name} records = {count} ({bytes} bytes)")?;
        }
        let records: u64 = self.counts.iter().map(|(n, _)| n).sum();
        let payload: u64 = self.counts.iter().map(|(_, n)| n).sum();
        let overhead = records * RECORD as u64;
        let taken = self.from.taken;
        writeln!(out, "\tTotal records = {records}")?;
        writeln!(out, "\tTotal payload size = {payload} ({payload:#x})")?;
        writeln!(out, "\tTotal header overhead = {overhead} ({overhead:#x})")?;
        writeln!(out, "\tTotal stream length = {taken} ({taken:#x})")?;
        Ok(())
    }
}
