//! Records taken from an input, and put into an output, one at a time. Unlike `stream::Reader` this takes what makes no sense, as
//! far as it can be told where the next record begins: `zstream` shows and mends streams that no receiver would take.

use crate::error;
use cli::run::Fail;
use disk::stream::{is_swapped, Record, CHECKSUM_AT, RECORD};
use std::io::{self, Read, Write};

/// Number of the compression of a payload that is as the file reads.
pub const PLAIN: u8 = 0;

/// A source of records.
pub struct Records<R> {
    from: R,
    /// The sender had the other byte order; known from the first record on.
    swapped: Option<bool>,
    /// Bytes taken, of whole records and payloads.
    pub taken: u64,
}

/// A record that was read, with its payload.
pub struct Read1 {
    pub header: [u8; RECORD],
    pub record: Record,
    pub payload: Vec<u8>,
    /// Offset of the payload in the input.
    pub payload_at: u64,
}

impl<R: Read> Records<R> {
    pub fn new(from: R) -> Records<R> {
        Records {
            from,
            swapped: None,
            taken: 0,
        }
    }

    /// Whether the sender had the other byte order.
    pub fn is_swapped(&self) -> bool {
        self.swapped == Some(true)
    }

    /// The bytes of the next record; `None` at the end, also if less than a record is left.
    pub fn header(&mut self) -> io::Result<Option<[u8; RECORD]>> {
        let mut header = [0; RECORD];
        // The checksum is a part of its own: OpenZFS counts what is before it, if only that is there.
        for part in [0..CHECKSUM_AT, CHECKSUM_AT..RECORD] {
            let len = part.len() as u64;
            match self.from.read_exact(&mut header[part]) {
                Ok(()) => self.taken += len,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(header))
    }

    /// Learns the byte order from the first record. False: it is none.
    pub fn learn(&mut self, header: &[u8; RECORD]) -> bool {
        if self.swapped.is_none() {
            self.swapped = is_swapped(header).ok();
        }
        self.swapped.is_some()
    }

    /// A payload of that length; `None` if the input ends before. It grows only with what has come.
    pub fn payload(&mut self, len: u64) -> io::Result<Option<Vec<u8>>> {
        let mut payload = Vec::new();
        let have = self.from.by_ref().take(len).read_to_end(&mut payload)?;
        if have as u64 != len {
            return Ok(None);
        }
        self.taken += len;
        Ok(Some(payload))
    }

    /// The next record with its payload, for programs that copy streams; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Read1>, Fail> {
        let header = match self.header() {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(e) => return error(format!("Error while reading file: {}", base::io_text(&e))),
        };
        if !self.learn(&header) {
            return error("Invalid stream (bad magic number)");
        }
        let record = match Record::decode(&header, self.is_swapped()) {
            Ok(record) => record,
            Err(e) => return error(e.to_string()),
        };
        let payload_at = self.taken;
        match self.payload(record.payload()) {
            Ok(Some(payload)) => Ok(Some(Read1 {
                header,
                record,
                payload,
                payload_at,
            })),
            Ok(None) => error("Error: unexpected end-of-file"),
            Err(e) => error(format!("Error while reading file: {}", base::io_text(&e))),
        }
    }
}

/// A destination of records, which is opened when the byte order is known.
pub struct Output<W: Write> {
    out: Option<W>,
    writer: Option<stream::Writer<W>>,
}

impl<W: Write> Output<W> {
    /// Writes a record with the bytes of its header and a new checksum.
    pub fn put(
        &mut self,
        header: &[u8; RECORD],
        payload: &[u8],
        swapped: bool,
    ) -> Result<(), Fail> {
        if let Some(out) = self.out.take() {
            self.writer = Some(match swapped {
                true => stream::Writer::new_swapped(out),
                false => stream::Writer::new(out),
            });
        }
        match &mut self.writer {
            Some(writer) => done(writer.write_encoded(header, payload)),
            None => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), Fail> {
        match &mut self.writer {
            Some(writer) => done(writer.flush()),
            None => Ok(()),
        }
    }
}

/// Copies a stream: `each` puts what it makes of every record. What was put before an error is written.
pub fn copy<R: Read, W: Write>(
    from: R,
    out: W,
    mut each: impl FnMut(Read1, bool, &mut Output<W>) -> Result<(), Fail>,
) -> Result<(), Fail> {
    let mut from = Records::new(from);
    let mut out = Output {
        out: Some(out),
        writer: None,
    };
    let mut all = || {
        while let Some(item) = from.next()? {
            each(item, from.is_swapped(), &mut out)?;
        }
        Ok(())
    };
    let copied = all();
    let written = out.finish();
    copied.and(written)
}

fn done(r: base::Result<()>) -> Result<(), Fail> {
    r.or_else(|e| error(format!("Error while writing the stream: {e}")))
}
