//! Writes streams record by record.

use base::{bail, Result};
use codec::checksum::Fletcher4;
use disk::stream::{store_checksum, Begin, End, HeaderType, Record, CHECKSUM_AT, RECORD};
use disk::NvList;
use std::io::{ErrorKind, IoSlice, Write};

/// Shorter payloads are copied behind their records, longer ones are written from where they are.
const COPIED: usize = 32 << 10;
/// Bytes collected before they are written.
const BUFFER: usize = 128 << 10;

/// Writes streams and packages in this machine's byte order. [`Writer::flush`] has to be called at the end.
pub struct Writer<W> {
    out: W,
    sum: Fletcher4,
    swapped: bool,
    buffer: Vec<u8>,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// A writer into `out`.
    pub fn new(out: W) -> Writer<W> {
        Writer {
            out,
            sum: Fletcher4::new(false),
            swapped: false,
            buffer: Vec::with_capacity(BUFFER + COPIED + 2 * RECORD),
            written: 0,
        }
    }

    /// A writer of streams in the other byte order; payloads are given in it.
    pub fn new_swapped(out: W) -> Writer<W> {
        Writer {
            swapped: true,
            sum: Fletcher4::new(true),
            ..Writer::new(out)
        }
    }

    /// Bytes of the stream so far, also those that are not flushed yet.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Begins the stream of a snapshot, or a package; `begin.list_len` is set from the list. An empty list is not written.
    /// As OpenZFS does it, the list of a stream has the native encoding, that of a package XDR.
    pub fn begin(&mut self, begin: &Begin, list: &NvList) -> Result<()> {
        let payload = match list.is_empty() {
            true => Vec::new(),
            false if begin.header_type == HeaderType::Compound => list.pack_xdr(),
            false => list.pack_native(),
        };
        let Ok(list_len) = u32::try_from(payload.len()) else {
            bail!(Invalid, "send stream: a list of {} bytes", payload.len());
        };
        self.write(
            &Record::Begin(Begin {
                list_len,
                ..begin.clone()
            }),
            &payload,
        )
    }

    /// Writes a record with its payload, and its checksum unless it is BEGIN, which begins a new checksum.
    ///
    /// Errors: `Invalid` if the payload has another length than the record says, or the record is END ([`Writer::end`]); those of the output.
    pub fn write(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        if record.payload() != payload.len() as u64 || matches!(record, Record::End(_)) {
            bail!(
                Invalid,
                "send stream: {} record with {} bytes of payload",
                record.name(),
                payload.len()
            );
        }
        self.put(record.encode(self.swapped), record.number() == 0, payload)
    }

    /// Writes a record that is there in its encoded form, with a checksum of its own. END gets the new checksum if it had one, and
    /// is followed by another stream; that is how OpenZFS's `zstream` copies streams and packages.
    pub fn write_encoded(&mut self, header: &[u8; RECORD], payload: &[u8]) -> Result<()> {
        let mut header = *header;
        let mut record = Record::decode(&header, self.swapped)?;
        if let Record::End(end) = &mut record {
            if end.checksum != [0; 4] {
                end.checksum = self.sum.words();
                header = record.encode(self.swapped);
            }
        }
        self.put(header, record.number() == 0, payload)?;
        if let Record::End(_) = record {
            self.sum = Fletcher4::new(self.swapped);
        }
        Ok(())
    }

    /// Ends the stream of a snapshot.
    pub fn end(&mut self, to_guid: u64) -> Result<()> {
        let end = End {
            checksum: self.sum.words(),
            to_guid,
        };
        self.put(Record::End(end).encode(self.swapped), false, &[])
    }

    /// Begins a package: its BEGIN with the list, and the END of that. The header type is set here.
    pub fn begin_package(&mut self, begin: &Begin, list: &NvList) -> Result<()> {
        self.begin(
            &Begin {
                header_type: HeaderType::Compound,
                ..begin.clone()
            },
            list,
        )?;
        let end = End {
            checksum: self.sum.words(),
            to_guid: 0,
        };
        self.push(&Record::End(end).encode(self.swapped), &[])
    }

    /// Ends a package.
    pub fn end_package(&mut self) -> Result<()> {
        self.push(&Record::End(End::default()).encode(self.swapped), &[])
    }

    /// Writes what was collected.
    pub fn flush(&mut self) -> Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(self.out.flush()?)
    }

    /// The output. What was not flushed is lost.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn put(&mut self, mut header: [u8; RECORD], begin: bool, payload: &[u8]) -> Result<()> {
        if begin {
            self.sum = Fletcher4::new(self.swapped);
            self.sum.update(&header);
        } else {
            self.sum.update(&header[..CHECKSUM_AT]);
            store_checksum(&mut header, self.sum.words(), self.swapped);
            self.sum.update(&header[CHECKSUM_AT..]);
        }
        self.sum.update(payload);
        self.push(&header, payload)
    }

    fn push(&mut self, header: &[u8; RECORD], payload: &[u8]) -> Result<()> {
        self.written += (RECORD + payload.len()) as u64;
        self.buffer.extend_from_slice(header);
        if payload.len() > COPIED {
            return self.gather(payload);
        }
        self.buffer.extend_from_slice(payload);
        if self.buffer.len() >= BUFFER {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes the buffer, and `payload` behind it, without copying it.
    fn gather(&mut self, payload: &[u8]) -> Result<()> {
        let (a, b) = (self.buffer.len(), payload.len());
        let mut done = 0;
        while done < a + b {
            let parts = [
                IoSlice::new(&self.buffer[done.min(a)..]),
                IoSlice::new(&payload[done.saturating_sub(a)..]),
            ];
            let parts = if done < a { &parts[..] } else { &parts[1..] };
            match self.out.write_vectored(parts) {
                Ok(0) => bail!(Io, "send stream: the output takes no more"),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.buffer.clear();
        Ok(())
    }
}
