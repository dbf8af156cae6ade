//! Reads streams record by record.

use base::{bail, Error, Kind, Result};
use codec::checksum::Fletcher4;
use disk::stream::{is_swapped, stored_checksum, HeaderType, Record, CHECKSUM_AT, RECORD};
use std::io::{IoSliceMut, Read};

/// A list grows by this many bytes at most before more of it has come.
const STEP: usize = 1 << 20;
/// Payload buffers kept for reuse.
const SPARES: usize = 64;

/// A record with its payload.
#[derive(Clone, Debug)]
pub struct Item {
    /// What the record says, in this machine's byte order.
    pub record: Record,
    /// [`Record::payload`] bytes, in the byte order of the sender.
    pub payload: Vec<u8>,
    /// The record as it came.
    pub header: [u8; RECORD],
}

/// Where in its input a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first BEGIN.
    Start,
    /// Behind the BEGIN of a package, before its END.
    Header,
    /// Between the streams of a package.
    Between,
    /// In a stream, which is one of a package.
    Stream { packed: bool },
    /// Behind the last END.
    Done,
    /// An error was found.
    Failed,
}

/// Reads one stream, or one package of streams.
pub struct Reader<R> {
    from: R,
    state: State,
    swapped: bool,
    sum: Fletcher4,
    /// The record behind the last one, which was read and verified with its payload.
    ahead: Option<[u8; RECORD]>,
    /// Bytes taken from the input.
    taken: u64,
    spares: Vec<Vec<u8>>,
    /// Most bytes of a list behind a BEGIN.
    most_list: usize,
}

impl<R: Read> Reader<R> {
    /// A reader of the stream that begins with the next byte of `from`. Nothing is read yet.
    pub fn new(from: R) -> Reader<R> {
        Reader {
            from,
            state: State::Start,
            swapped: false,
            sum: Fletcher4::new(false),
            ahead: None,
            taken: 0,
            spares: Vec::new(),
            most_list: disk::stream::MAX_LIST,
        }
    }

    /// Refuses lists of more than so many bytes, before they are read.
    pub fn with_lists_of(self, bytes: usize) -> Reader<R> {
        Reader {
            most_list: bytes,
            ..self
        }
    }

    /// Whether the sender of the current stream had the other byte order. Payloads that are neither
    /// compressed nor raw are swapped by the class of their object type.
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }

    /// Whether the current stream is one of a package.
    pub fn is_packed(&self) -> bool {
        matches!(
            self.state,
            State::Header | State::Between | State::Stream { packed: true }
        )
    }

    /// Bytes of the records handed out so far, with their payloads.
    pub fn position(&self) -> u64 {
        self.taken - self.ahead.map_or(0, |_| RECORD as u64)
    }

    /// Takes back a payload buffer for reuse.
    pub fn recycle(&mut self, mut payload: Vec<u8>) {
        if self.spares.len() < SPARES && payload.capacity() > 0 {
            payload.clear();
            self.spares.push(payload);
        }
    }

    /// The input, from which nothing behind the end of the stream was taken.
    pub fn into_inner(self) -> R {
        self.from
    }

    /// Makes a reader that is behind its stream read the next one of the same input.
    pub fn restart(&mut self) {
        if self.state == State::Done {
            self.state = State::Start;
        }
    }

    /// The next record; `None` behind the END of the stream or package, and if the input is empty from the start.
    ///
    /// In a package come: BEGIN (compound, with the list), END, the records of each stream from its BEGIN to its END, and a last END.
    /// All fields of the last one are zero, and it is verified to be so.
    ///
    /// Errors: `NoData` if the input ends within the stream; `Checksum` if a running checksum does not match;
    /// `Invalid` if it is no stream, or has a record that makes no sense; `Unsupported` if it has unknown features;
    /// those of the input. After an error there are no more records.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Item>> {
        match self.step() {
            Ok(item) => Ok(item),
            Err(e) => {
                self.state = State::Failed;
                self.ahead = None;
                Err(e)
            }
        }
    }

    fn step(&mut self) -> Result<Option<Item>> {
        let header = match (self.ahead.take(), self.state) {
            (Some(h), _) => h,
            (None, State::Done) => return Ok(None),
            (None, State::Failed) => bail!(Invalid, "send stream: it was given up"),
            (None, _) => match self.first()? {
                Some(h) => h,
                None => return Ok(None),
            },
        };
        let between = matches!(self.state, State::Start | State::Between);
        if between && !self.is_last_end(&header) {
            self.swapped = is_swapped(&header)?;
            self.sum = Fletcher4::new(self.swapped);
            self.sum.update(&header);
        }
        let record = Record::decode(&header, self.swapped)?;
        record.check()?;
        self.state = self.follow(&record)?;
        let inside = matches!(self.state, State::Header | State::Stream { .. });
        let payload = self.payload(&record, inside)?;
        Ok(Some(Item {
            record,
            payload,
            header,
        }))
    }

    /// The state behind a record.
    fn follow(&self, record: &Record) -> Result<State> {
        Ok(match (self.state, record) {
            (State::Start, Record::Begin(b)) => match b.header_type {
                HeaderType::Compound => State::Header,
                _ => State::Stream { packed: false },
            },
            (State::Between, Record::Begin(b)) => match b.header_type {
                HeaderType::Compound => bail!(Invalid, "send stream: a package in a package"),
                _ => State::Stream { packed: true },
            },
            (State::Header, Record::End(_)) => State::Between,
            (State::Between, Record::End(_)) => State::Done,
            (State::Stream { packed: true }, Record::End(_)) => State::Between,
            (State::Stream { packed: false }, Record::End(_)) => State::Done,
            (State::Stream { .. }, Record::Begin(_)) => {
                bail!(NoData, "send stream: another stream begins before its END")
            }
            (s @ State::Stream { .. }, _) => s,
            (_, r) => bail!(
                Invalid,
                "send stream: {} record where none may be",
                r.name()
            ),
        })
    }

    /// The record at the beginning of a stream; `None` if nothing at all comes.
    fn first(&mut self) -> Result<Option<[u8; RECORD]>> {
        let mut header = [0; RECORD];
        let mut have = 0;
        while have < RECORD {
            match self.from.read(&mut header[have..]) {
                Ok(0) if have == 0 && self.state == State::Start => return Ok(None),
                Ok(0) => return Err(self.ends()),
                Ok(n) => have += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.taken += RECORD as u64;
        Ok(Some(header))
    }

    /// Whether this is the END of a package: only its type is not zero. `zstream` adds the checksum of that.
    fn is_last_end(&self, header: &[u8; RECORD]) -> bool {
        let mut end = [0; RECORD];
        end[if self.swapped { 3 } else { 0 }] = 5;
        if self.state != State::Between || header[..CHECKSUM_AT] != end[..CHECKSUM_AT] {
            return false;
        }
        let mut sum = Fletcher4::new(self.swapped);
        sum.update(&end[..CHECKSUM_AT]);
        let stored = stored_checksum(header, self.swapped);
        stored == [0; 4] || stored == sum.words()
    }

    /// Reads the payload of a record and, `inside` a stream, the record behind it, and verifies both.
    fn payload(&mut self, record: &Record, inside: bool) -> Result<Vec<u8>> {
        let len = usize::try_from(record.payload()).map_err(|_| Error::from(Kind::Invalid))?;
        let mut payload = self.spares.pop().unwrap_or_default();
        let mut header = [0; RECORD];
        if let Record::Begin(_) = record {
            if len > self.most_list {
                let most = self.most_list;
                bail!(
                    NotPermitted,
                    "the list of the stream has {len} bytes, more than {most}"
                );
            }
            while payload.len() < len {
                let have = payload.len();
                payload.resize(len.min(have + STEP), 0);
                self.fill(&mut payload[have..], &mut [])?;
            }
            self.fill(&mut [], &mut header)?;
        } else {
            payload.resize(len, 0);
            match inside {
                true => self.fill(&mut payload, &mut header)?,
                false => self.fill(&mut payload, &mut [])?,
            }
        }
        if inside {
            self.sum.update(&payload);
            self.verify(&header)?;
            self.ahead = Some(header);
        }
        Ok(payload)
    }

    /// Adds a record to the running checksum and compares it with what the record says.
    fn verify(&mut self, header: &[u8; RECORD]) -> Result<()> {
        let before = self.sum.words();
        let (body, stored) = header.split_at(CHECKSUM_AT);
        self.sum.update(body);
        // Streams without checksums of their records have zeros there.
        let want = stored_checksum(header, self.swapped);
        if want != [0; 4] && want != self.sum.words() {
            bail!(
                Checksum,
                "send stream: checksum mismatch at byte {}",
                self.taken
            );
        }
        self.sum.update(stored);
        if let Ok(Record::End(end)) = Record::decode(header, self.swapped) {
            if end.checksum != before {
                bail!(
                    Checksum,
                    "send stream: checksum mismatch at its end, byte {}",
                    self.taken
                );
            }
        }
        Ok(())
    }

    /// Reads until both buffers are full.
    fn fill(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<()> {
        let (a, b) = (first.len(), second.len());
        let mut have = 0;
        while have < a + b {
            let (at, bt) = (have.min(a), have.saturating_sub(a));
            let mut parts = [
                IoSliceMut::new(&mut first[at..]),
                IoSliceMut::new(&mut second[bt..]),
            ];
            let parts = if at == a { &mut parts[1..] } else { &mut parts };
            match self.from.read_vectored(parts) {
                Ok(0) => return Err(self.ends()),
                Ok(n) => {
                    have += n;
                    self.taken += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn ends(&self) -> Error {
        Error::new(
            Kind::NoData,
            format!(
                "send stream: incomplete, it ends after {} bytes",
                self.taken
            ),
        )
    }
}
