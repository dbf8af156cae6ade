//! Resume tokens (data format §30.6): where an interrupted receive has to go on.
//!
//! A token is `1-<checksum>-<packed length>-<payload>` in hexadecimal digits. The payload is a packed list, compressed by zlib.
//! Tokens come from users and from other machines: nothing in them is believed before the checksum, and no length before it was reached.

use base::{bail, Error, Result};
use codec::{checksum::Fletcher4, compress};
use disk::{Compression, NvList};
use std::fmt::Write;

/// Version of tokens.
const VERSION: u64 = 1;
/// Longest list a token may hold; that of OpenZFS has some 300 bytes, and 8 more for each redaction snapshot.
const MAX_PACKED: usize = 1 << 20;

/// What a resume token says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeToken {
    /// Guid of the snapshot the stream is based on; `None`: a full stream.
    pub from_guid: Option<u64>,
    /// Object to go on with.
    pub object: u64,
    /// Offset in it, in bytes.
    pub offset: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Guid of the snapshot that is being received.
    pub to_guid: u64,
    /// Its name on the sender's side.
    pub to_name: String,
    /// Send large blocks (`-L`).
    pub large_blocks: bool,
    /// Send embedded blocks (`-e`).
    pub embedded: bool,
    /// Send compressed blocks (`-c`).
    pub compressed: bool,
    /// Send raw encrypted blocks (`-w`).
    pub raw: bool,
    /// Send what a partial receive has kept (`--saved`); no token of OpenZFS's has it.
    pub saved: bool,
    /// Redaction snapshots of the stream.
    pub redact_snaps: Option<Vec<u64>>,
    /// Redaction snapshots of the redaction bookmark the stream was made with.
    pub book_redact_snaps: Option<Vec<u64>>,
}

impl ResumeToken {
    /// The text of the token.
    pub fn encode(&self) -> String {
        pack(&self.to_list())
    }

    /// Reads the text of a token.
    ///
    /// Errors: `Invalid`, with OpenZFS's words, if it is damaged or lacks something.
    pub fn decode(token: &str) -> Result<ResumeToken> {
        ResumeToken::from_list(&unpack(token)?)
    }

    /// The list in the token.
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        if let Some(guid) = self.from_guid {
            list.set("fromguid", guid);
        }
        list.set("object", self.object);
        list.set("offset", self.offset);
        list.set("bytes", self.bytes);
        list.set("toguid", self.to_guid);
        list.set("toname", self.to_name.as_str());
        for (name, on) in [
            ("largeblockok", self.large_blocks),
            ("embedok", self.embedded),
            ("compressok", self.compressed),
            ("rawok", self.raw),
            ("savedok", self.saved),
        ] {
            if on {
                list.set_flag(name);
            }
        }
        for (name, snaps) in [
            ("redact_snaps", &self.redact_snaps),
            ("book_redact_snaps", &self.book_redact_snaps),
        ] {
            if let Some(snaps) = snaps {
                list.set(name, snaps.clone());
            }
        }
        list
    }

    /// What the list of a token says.
    ///
    /// Errors: `Invalid` if it lacks something.
    pub fn from_list(list: &NvList) -> Result<ResumeToken> {
        let number = |name| list.get_u64(name).ok_or_else(|| corrupt(""));
        let array = |name| list.get_u64_array(name).map(<[u64]>::to_vec);
        Ok(ResumeToken {
            from_guid: list.get_u64("fromguid"),
            object: number("object")?,
            offset: number("offset")?,
            bytes: number("bytes")?,
            to_guid: number("toguid")?,
            to_name: list
                .get_str("toname")
                .ok_or_else(|| corrupt(""))?
                .to_string(),
            large_blocks: list.contains("largeblockok"),
            embedded: list.contains("embedok"),
            compressed: list.contains("compressok"),
            raw: list.contains("rawok"),
            saved: list.contains("savedok"),
            redact_snaps: array("redact_snaps"),
            book_redact_snaps: array("book_redact_snaps"),
        })
    }

    /// What `zfs send -nv -t` prints of it before the estimate.
    pub fn describe(&self) -> String {
        format!("resume token contents:\n{}", self.to_list().print())
    }
}

/// An error in OpenZFS's words.
fn corrupt(why: &str) -> Error {
    Error::new(
        base::Kind::Invalid,
        match why {
            "" => "resume token is corrupt".to_string(),
            why => format!("resume token is corrupt ({why})"),
        },
    )
}

/// First word of fletcher4 over whole words of the compressed payload.
fn checksum(payload: &[u8]) -> u64 {
    let mut sum = Fletcher4::new(false);
    sum.update(&payload[..payload.len() & !3]);
    sum.words()[0]
}

/// The token that holds a list.
pub fn pack(list: &NvList) -> String {
    let packed = list.pack_native();
    // What does not shrink grows by less than this.
    let most = packed.len() + packed.len() / 100 + 64;
    let payload = compress::compress(Compression::GZIP_6, 0, &packed, most).unwrap_or_default();
    let mut out = format!("{VERSION}-{:x}-{:x}-", checksum(&payload), packed.len());
    for b in payload {
        // Writing to a String cannot fail.
        let _ = write!(out, "{b:02x}");
    }
    out
}

/// The list that a token holds, whatever is in it.
///
/// Errors: `Invalid`, with OpenZFS's words.
pub fn unpack(token: &str) -> Result<NvList> {
    let mut parts = token.splitn(4, '-');
    let mut part = || parts.next().ok_or_else(|| corrupt("invalid format"));
    let (version, sum, len, hex) = (part()?, part()?, part()?, part()?);
    let number = |digits: &str, radix| {
        u64::from_str_radix(digits, radix).map_err(|_| corrupt("invalid format"))
    };
    let (version, sum, len) = (number(version, 10)?, number(sum, 16)?, number(len, 16)?);
    if version != VERSION {
        return Err(corrupt(&format!("invalid version {version}")));
    }
    let payload = unhex(hex).ok_or_else(|| corrupt("payload is not hex-encoded"))?;
    if checksum(&payload) != sum {
        return Err(corrupt("incorrect checksum"));
    }
    let len = match usize::try_from(len) {
        Ok(len) if len <= MAX_PACKED => len,
        _ => return Err(corrupt("decompression failed")),
    };
    let Ok(packed) = compress::decompress(Compression::GZIP_6, &payload, len) else {
        return Err(corrupt("decompression failed"));
    };
    match NvList::unpack(&packed) {
        Ok(list) => Ok(list),
        Err(_) => bail!(Invalid, "resume token is corrupt (nvlist_unpack failed)"),
    }
}

/// Bytes from pairs of digits.
fn unhex(hex: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    rest.is_empty().then_some(())?;
    pairs
        .iter()
        .map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by OpenZFS (fixture streams-more, case resumed-raw).
    const RAW: &str = "1-df0773936-f8-789c636064000310a500c4ec50360710e72765a52697303098429460caa7a515a79630c001489e0d493ea9b224b51848e73c63c4aabf243fbd34338581e1e80e7f9eb4f263b10648f29c60f9bcc4dc54068682a2c4cca2cc54dd825cfdd4bc64074364fbb81910ee4fcecf2d284a2d2ececf86884940dd03932f4a2c874931000022921f19";

    fn raw() -> ResumeToken {
        ResumeToken {
            object: 0x35,
            bytes: 0x1e66c,
            to_guid: 0x5dc6_7766_0c4f_b8c5,
            to_name: "prairie-pm/enc@1".into(),
            compressed: true,
            raw: true,
            ..ResumeToken::default()
        }
    }

    #[test]
    fn token_of_openzfs_is_read_and_printed() {
        let token = ResumeToken::decode(RAW).unwrap();
        assert_eq!(token, raw());
        // The list is packed to the same length; compressed by another zlib it may have other bytes.
        assert_eq!(token.encode().split('-').nth(2), Some("f8"));
        assert_eq!(
            token.describe(),
            "resume token contents:\nnvlist version: 0\n\tobject = 0x35\n\toffset = 0x0\n\tbytes = 0x1e66c\n\
             \ttoguid = 0x5dc677660c4fb8c5\n\ttoname = prairie-pm/enc@1\n\tcompressok = 1\n\trawok = 1\n"
        );
    }

    #[test]
    fn every_field_is_the_same_after_encoding() {
        let token = ResumeToken {
            from_guid: Some(1),
            object: 2,
            offset: 3,
            bytes: 4,
            to_guid: 5,
            to_name: "p/f@s".into(),
            large_blocks: true,
            embedded: true,
            compressed: true,
            raw: true,
            saved: true,
            redact_snaps: Some(vec![6, 7]),
            book_redact_snaps: Some(vec![]),
        };
        assert_eq!(ResumeToken::decode(&token.encode()).unwrap(), token);
        assert_eq!(ResumeToken::decode(&raw().encode()).unwrap(), raw());
    }

    #[test]
    fn damaged_tokens_are_refused_in_openzfs_words() {
        let e = |t: &str| ResumeToken::decode(t).unwrap_err().to_string();
        assert_eq!(e(""), "resume token is corrupt (invalid format)");
        assert_eq!(e("hello"), "resume token is corrupt (invalid format)");
        assert_eq!(e("2-0-0-"), "resume token is corrupt (invalid version 2)");
        assert_eq!(
            e("1-0-0-789z"),
            "resume token is corrupt (payload is not hex-encoded)"
        );
        assert_eq!(
            e(&RAW.replace("789c6360", "789c6361")),
            "resume token is corrupt (incorrect checksum)"
        );
        assert_eq!(
            e(&RAW.replace("-f8-", "-f7-")),
            "resume token is corrupt (decompression failed)"
        );
        assert_eq!(
            e(&RAW.replace("-f8-", "-ffffffffffffffff-")),
            "resume token is corrupt (decompression failed)"
        );
        let mut list = raw().to_list();
        list.remove("toguid");
        assert_eq!(e(&pack(&list)), "resume token is corrupt");
    }
}
