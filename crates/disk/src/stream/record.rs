//! The types of records: typed values, their layouts, and the sizes of their payloads.

use super::fields::{get, put, Field};
use super::{HeaderType, MAGIC, MAX_BONUS, MAX_LIST, NAME, RECORD};
use crate::bytes::up8;
use crate::crypt::{IV_SIZE, MAC_SIZE, SALT_SIZE};
use crate::ddt::KEY_WORDS;
use base::{bail, Result, MAX_BLOCK};

/// Defines a record's struct together with its layout: each field has its offset in the record.
macro_rules! layout {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $t:ty = $at:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $t,)*
        }

        impl $name {
            fn get(b: &[u8; RECORD], swapped: bool) -> $name {
                $name { $($field: get(b, $at, swapped),)* }
            }

            fn put(&self, b: &mut [u8; RECORD], swapped: bool) {
                $(Field::put(&self.$field, b, $at, swapped);)*
            }
        }
    };
}

/// BEGIN: what the stream is of. Payload: a packed nvlist ([`Begin::list_len`] bytes), or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// One snapshot, or a package.
    pub header_type: HeaderType,
    /// See [`super::feature`].
    pub features: u64,
    /// Bits 58 to 63 of the version word; 0.
    pub reserved: u8,
    /// When the snapshot was made: seconds since 1970.
    pub creation_time: u64,
    /// Type of the object set: 2 a file system, 3 a volume (`os_type`); 0 in the header of a package.
    pub objset_type: u32,
    /// See [`super::begin_flag`].
    pub flags: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot or bookmark the stream is based on; 0: a full stream.
    pub from_guid: u64,
    /// `pool/fs@snap`; not necessarily UTF-8, without the NUL, at most 255 bytes.
    pub to_name: Vec<u8>,
    /// Bytes of the payload.
    pub list_len: u32,
}

impl Default for Begin {
    fn default() -> Begin {
        Begin {
            header_type: HeaderType::Substream,
            features: 0,
            reserved: 0,
            creation_time: 0,
            objset_type: 0,
            flags: 0,
            to_guid: 0,
            from_guid: 0,
            to_name: Vec::new(),
            list_len: 0,
        }
    }
}

impl Begin {
    /// Whether all of these features are set.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Whether the stream holds raw encrypted blocks.
    pub fn is_raw(&self) -> bool {
        self.has(super::feature::RAW)
    }

    /// Feature bits that this software does not know; such a stream is refused.
    pub fn unknown_features(&self) -> u64 {
        self.features & !super::feature::KNOWN | u64::from(self.reserved) << 56
    }

    /// The name as text.
    ///
    /// Errors: `Invalid` if it is not UTF-8.
    pub fn name(&self) -> Result<&str> {
        match std::str::from_utf8(&self.to_name) {
            Ok(s) => Ok(s),
            Err(_) => bail!(
                Invalid,
                "send stream: the name of the snapshot is not UTF-8"
            ),
        }
    }

    fn get(b: &[u8; RECORD], swapped: bool) -> Result<Begin> {
        if get::<u64>(b, 8, swapped) != MAGIC {
            return Err(super::not_a_stream());
        }
        let info: u64 = get(b, 16, swapped);
        let name: [u8; NAME] = get(b, 56, swapped);
        Ok(Begin {
            header_type: HeaderType::from_number((info & 3) as u8),
            features: info >> 2 & ((1 << 56) - 1),
            reserved: (info >> 58) as u8,
            creation_time: get(b, 24, swapped),
            objset_type: get(b, 32, swapped),
            flags: get(b, 36, swapped),
            to_guid: get(b, 40, swapped),
            from_guid: get(b, 48, swapped),
            to_name: name[..NAME - 1]
                .iter()
                .copied()
                .take_while(|c| *c != 0)
                .collect(),
            list_len: get(b, 4, swapped),
        })
    }

    fn put(&self, b: &mut [u8; RECORD], swapped: bool) {
        let mut name = [0; NAME];
        for (d, s) in name.iter_mut().take(NAME - 1).zip(&self.to_name) {
            *d = *s;
        }
        put(b, 4, self.list_len, swapped);
        put(b, 8, MAGIC, swapped);
        let features = self.features & ((1 << 56) - 1);
        let info = u64::from(self.header_type.number() & 3)
            | features << 2
            | u64::from(self.reserved) << 58;
        put(b, 16, info, swapped);
        put(b, 24, self.creation_time, swapped);
        put(b, 32, self.objset_type, swapped);
        put(b, 36, self.flags, swapped);
        put(b, 40, self.to_guid, swapped);
        put(b, 48, self.from_guid, swapped);
        put(b, 56, name, swapped);
    }
}

layout! {
    /// OBJECT: an object that exists in the snapshot. Payload: its bonus.
    Object {
        /// Object number.
        object: u64 = 8,
        /// Number of the type of its data (`ObjType`).
        obj_type: u32 = 16,
        /// Number of the type of its bonus.
        bonus_type: u32 = 20,
        /// Bytes of a data block.
        block_size: u32 = 24,
        /// Bytes of the bonus in use.
        bonus_len: u32 = 28,
        /// Number of the checksum of its blocks; 0 inherits.
        checksum_type: u8 = 32,
        /// Number of the compression of its blocks; 0 inherits.
        compress: u8 = 33,
        /// Dnode slots; 0 stands for 1.
        slots: u8 = 34,
        /// See [`super::record_flag`].
        flags: u8 = 35,
        /// Raw: bytes of the stored bonus; 0 otherwise.
        raw_bonus_len: u32 = 36,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 40,
        /// Raw: log2 of the bytes of an indirect block.
        indirect_shift: u8 = 48,
        /// Raw: levels of the tree.
        levels: u8 = 49,
        /// Raw: block pointers of the dnode.
        block_pointers: u8 = 50,
        /// Raw: number of the last block.
        max_block: u64 = 56,
    }
}

layout! {
    /// FREEOBJECTS: objects that do not exist in the snapshot.
    FreeObjects {
        /// Number of the first object.
        first: u64 = 8,
        /// Number of objects.
        count: u64 = 16,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 24,
    }
}

layout! {
    /// WRITE: a block of data. Payload: `compressed_size` bytes if it is compressed, `logical_size` bytes if not.
    Write {
        /// Object number.
        object: u64 = 8,
        /// Number of the type of the object.
        obj_type: u32 = 16,
        /// First byte of the range.
        offset: u64 = 24,
        /// Bytes the block stands for.
        logical_size: u64 = 32,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 40,
        /// Number of the checksum in the key; 0 if there is none.
        checksum_type: u8 = 48,
        /// See [`super::record_flag`].
        flags: u8 = 49,
        /// Number of the compression of the payload; 0: as the file reads.
        compression: u8 = 50,
        /// Checksum and properties of the stored block, as in a dedup table.
        key: [u64; KEY_WORDS] = 56,
        /// Bytes of a compressed payload.
        compressed_size: u64 = 96,
        /// Raw: salt of the block; zero otherwise.
        salt: [u8; SALT_SIZE] = 104,
        /// Raw: nonce of the block; zero otherwise.
        iv: [u8; IV_SIZE] = 112,
        /// Raw: authentication code of the block; zero otherwise.
        mac: [u8; MAC_SIZE] = 124,
    }
}

layout! {
    /// FREE: a range of an object that is a hole in the snapshot.
    Free {
        /// Object number.
        object: u64 = 8,
        /// First byte of the range.
        offset: u64 = 16,
        /// Bytes; all ones: to the end of the object.
        length: u64 = 24,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 32,
    }
}

layout! {
    /// END: the stream is complete.
    End {
        /// Running checksum of all before; zero in the END that closes a package.
        checksum: [u64; 4] = 8,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 40,
    }
}

layout! {
    /// WRITE_BYREF: data that an earlier WRITE of the same package had (streams of `send -D`).
    WriteByRef {
        /// Object number.
        object: u64 = 8,
        /// First byte of the range.
        offset: u64 = 16,
        /// Bytes.
        length: u64 = 24,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 32,
        /// Guid of the snapshot the data are of.
        ref_guid: u64 = 40,
        /// Object of that snapshot.
        ref_object: u64 = 48,
        /// Offset in that object.
        ref_offset: u64 = 56,
        /// Number of the checksum in the key.
        checksum_type: u8 = 64,
        /// See [`super::record_flag`].
        flags: u8 = 65,
        /// Checksum and properties of the block, as in a dedup table.
        key: [u64; KEY_WORDS] = 72,
    }
}

layout! {
    /// SPILL: the spill block of an object. Payload: `compressed_size` bytes if that is not 0, else `length` bytes.
    Spill {
        /// Object number.
        object: u64 = 8,
        /// Bytes of the block.
        length: u64 = 16,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 24,
        /// See [`super::record_flag`].
        flags: u8 = 32,
        /// Number of the compression of the payload.
        compression: u8 = 33,
        /// Bytes of the payload, if it is compressed or raw.
        compressed_size: u64 = 40,
        /// Raw: salt of the block; zero otherwise.
        salt: [u8; SALT_SIZE] = 48,
        /// Raw: nonce of the block; zero otherwise.
        iv: [u8; IV_SIZE] = 56,
        /// Raw: authentication code of the block; zero otherwise.
        mac: [u8; MAC_SIZE] = 68,
        /// Number of the type of the block.
        obj_type: u32 = 84,
    }
}

layout! {
    /// WRITE_EMBEDDED: a block that is small enough for its block pointer. Payload: `psize` bytes, padded to 8.
    WriteEmbedded {
        /// Object number.
        object: u64 = 8,
        /// First byte of the range.
        offset: u64 = 16,
        /// Bytes of the block in the object.
        length: u64 = 24,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 32,
        /// Number of the compression of the payload.
        compression: u8 = 40,
        /// Kind of embedding; 0 data.
        etype: u8 = 41,
        /// Bytes of the data, decompressed.
        lsize: u32 = 48,
        /// Bytes of the data in the pointer.
        psize: u32 = 52,
    }
}

layout! {
    /// OBJECT_RANGE: encryption parameters of a block of dnodes; only raw streams have it.
    ObjectRange {
        /// Number of the first object of the block.
        first: u64 = 8,
        /// Dnode slots of the block.
        slots: u64 = 16,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 24,
        /// Salt of the block.
        salt: [u8; SALT_SIZE] = 32,
        /// Nonce of the block.
        iv: [u8; IV_SIZE] = 40,
        /// Authentication code of the block.
        mac: [u8; MAC_SIZE] = 52,
        /// See [`super::record_flag`].
        flags: u8 = 68,
    }
}

layout! {
    /// REDACT: a range that is left out of a redacted stream.
    Redact {
        /// Object number.
        object: u64 = 8,
        /// First byte of the range.
        offset: u64 = 16,
        /// Bytes.
        length: u64 = 24,
        /// Guid of the snapshot that is sent.
        to_guid: u64 = 32,
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// What the stream is of; the first record.
    Begin(Begin),
    /// An object that exists.
    Object(Object),
    /// Objects that do not exist.
    FreeObjects(FreeObjects),
    /// A block of data.
    Write(Write),
    /// A hole.
    Free(Free),
    /// The stream is complete.
    End(End),
    /// Data that an earlier record had.
    WriteByRef(WriteByRef),
    /// A spill block.
    Spill(Spill),
    /// A block embedded in its pointer.
    WriteEmbedded(WriteEmbedded),
    /// A block of dnodes in a raw stream.
    ObjectRange(ObjectRange),
    /// A range left out by redaction.
    Redact(Redact),
}

impl Record {
    /// Decodes a record of a stream of this machine's byte order, or (`swapped`) of the other one. Its
    /// checksum is not looked at: [`super::stored_checksum`].
    ///
    /// Errors: `Invalid` if the type is unknown, the magic is wrong, or the payload is longer than records of the type can have.
    pub fn decode(b: &[u8; RECORD], swapped: bool) -> Result<Record> {
        let record = match get::<u32>(b, 0, swapped) {
            0 => Record::Begin(Begin::get(b, swapped)?),
            1 => Record::Object(Object::get(b, swapped)),
            2 => Record::FreeObjects(FreeObjects::get(b, swapped)),
            3 => Record::Write(Write::get(b, swapped)),
            4 => Record::Free(Free::get(b, swapped)),
            5 => Record::End(End::get(b, swapped)),
            6 => Record::WriteByRef(WriteByRef::get(b, swapped)),
            7 => Record::Spill(Spill::get(b, swapped)),
            8 => Record::WriteEmbedded(WriteEmbedded::get(b, swapped)),
            9 => Record::ObjectRange(ObjectRange::get(b, swapped)),
            10 => Record::Redact(Redact::get(b, swapped)),
            n => bail!(Invalid, "send stream: record of unknown type {n:#x}"),
        };
        let (len, most) = (record.payload(), record.payload_limit());
        if len > most as u64 {
            bail!(
                Invalid,
                "send stream: {} record with a payload of {len} bytes, more than {most}",
                record.name()
            );
        }
        Ok(record)
    }

    /// Encodes the record, with zeros for its checksum.
    pub fn encode(&self, swapped: bool) -> [u8; RECORD] {
        let mut b = [0; RECORD];
        put(&mut b, 0, self.number(), swapped);
        match self {
            Record::Begin(r) => r.put(&mut b, swapped),
            Record::Object(r) => r.put(&mut b, swapped),
            Record::FreeObjects(r) => r.put(&mut b, swapped),
            Record::Write(r) => r.put(&mut b, swapped),
            Record::Free(r) => r.put(&mut b, swapped),
            Record::End(r) => r.put(&mut b, swapped),
            Record::WriteByRef(r) => r.put(&mut b, swapped),
            Record::Spill(r) => r.put(&mut b, swapped),
            Record::WriteEmbedded(r) => r.put(&mut b, swapped),
            Record::ObjectRange(r) => r.put(&mut b, swapped),
            Record::Redact(r) => r.put(&mut b, swapped),
        }
        b
    }

    /// Number of the type.
    pub fn number(&self) -> u32 {
        match self {
            Record::Begin(_) => 0,
            Record::Object(_) => 1,
            Record::FreeObjects(_) => 2,
            Record::Write(_) => 3,
            Record::Free(_) => 4,
            Record::End(_) => 5,
            Record::WriteByRef(_) => 6,
            Record::Spill(_) => 7,
            Record::WriteEmbedded(_) => 8,
            Record::ObjectRange(_) => 9,
            Record::Redact(_) => 10,
        }
    }

    /// Name of the type.
    pub fn name(&self) -> &'static str {
        match self {
            Record::Begin(_) => "BEGIN",
            Record::Object(_) => "OBJECT",
            Record::FreeObjects(_) => "FREEOBJECTS",
            Record::Write(_) => "WRITE",
            Record::Free(_) => "FREE",
            Record::End(_) => "END",
            Record::WriteByRef(_) => "WRITE_BYREF",
            Record::Spill(_) => "SPILL",
            Record::WriteEmbedded(_) => "WRITE_EMBEDDED",
            Record::ObjectRange(_) => "OBJECT_RANGE",
            Record::Redact(_) => "REDACT",
        }
    }

    /// Bytes of payload that follow the record.
    pub fn payload(&self) -> u64 {
        match self {
            Record::Begin(r) => u64::from(r.list_len),
            Record::Object(r) if r.raw_bonus_len != 0 => u64::from(r.raw_bonus_len),
            Record::Object(r) => up8(r.bonus_len as usize) as u64,
            Record::Write(r) if r.compression != 0 => r.compressed_size,
            Record::Write(r) => r.logical_size,
            Record::Spill(r) if r.compressed_size != 0 => r.compressed_size,
            Record::Spill(r) => r.length,
            Record::WriteEmbedded(r) => up8(r.psize as usize) as u64,
            _ => 0,
        }
    }

    /// Most bytes of payload that a record of this type may have.
    pub fn payload_limit(&self) -> usize {
        match self {
            Record::Begin(_) => MAX_LIST,
            Record::Object(_) => MAX_BONUS,
            Record::Write(_) | Record::Spill(_) => MAX_BLOCK,
            Record::WriteEmbedded(_) => crate::blkptr::EMBEDDED_MAX,
            _ => 0,
        }
    }

    /// Guid of the snapshot the record is of; all records of a stream have the same.
    pub fn to_guid(&self) -> u64 {
        match self {
            Record::Begin(r) => r.to_guid,
            Record::Object(r) => r.to_guid,
            Record::FreeObjects(r) => r.to_guid,
            Record::Write(r) => r.to_guid,
            Record::Free(r) => r.to_guid,
            Record::End(r) => r.to_guid,
            Record::WriteByRef(r) => r.to_guid,
            Record::Spill(r) => r.to_guid,
            Record::WriteEmbedded(r) => r.to_guid,
            Record::ObjectRange(r) => r.to_guid,
            Record::Redact(r) => r.to_guid,
        }
    }
}
