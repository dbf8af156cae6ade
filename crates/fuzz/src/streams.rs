//! Targets for send streams: records, lists in them, resume tokens, whole streams.

use disk::stream::{HeaderType, Record, RECORD};
use disk::NvList;
use std::hint::black_box;
use stream::{BeginList, Package, Reader, ResumeToken, Writer};

/// A single record in both byte orders.
pub fn record(b: &[u8]) {
    let Some(record) = b.first_chunk() else {
        return;
    };
    for swapped in [false, true] {
        let Ok(r) = Record::decode(record, swapped) else {
            continue;
        };
        let most = r.payload_limit() as u64;
        assert!(r.payload() <= most, "a payload beyond its limit");
        let again = Record::decode(&r.encode(swapped), swapped);
        assert_eq!(again.ok().as_ref(), Some(&r), "another after encoding");
        let _ = black_box(r.check());
    }
}

/// The lists in BEGIN, from a packed list.
pub fn lists(b: &[u8]) {
    if let Ok(list) = BeginList::from_payload(b) {
        let again = BeginList::from_payload(&list.to_list().pack_native());
        assert_eq!(again.ok(), Some(list), "another list after encoding");
    }
    let Ok(list) = NvList::unpack(b) else { return };
    black_box(list.print());
    // Names that are there twice are one afterwards.
    if let Ok(package) = Package::from_list(&list) {
        assert!(Package::from_list(&package.to_list()).is_ok());
    }
    // The same list in a token, right but for what it says.
    if let Ok(unpacked) = stream::token::unpack(&stream::token::pack(&list)) {
        let _ = black_box(ResumeToken::from_list(&unpacked));
    }
}

/// The text of a resume token.
pub fn token(b: &[u8]) {
    let text = String::from_utf8_lossy(b);
    if let Ok(token) = ResumeToken::decode(&text) {
        assert_eq!(ResumeToken::decode(&token.encode()).ok(), Some(token));
    }
}

/// Everything a reader hands out.
fn read(b: &[u8]) {
    let mut reader = Reader::new(b);
    while let Ok(Some(item)) = reader.next() {
        let want = item.record.payload();
        assert_eq!(item.payload.len() as u64, want, "another payload");
        assert!(item.record.check().is_ok());
        if let Record::Begin(begin) = &item.record {
            let _ = match begin.header_type {
                HeaderType::Compound => NvList::unpack(&item.payload)
                    .and_then(|l| Package::from_list(&l))
                    .is_ok(),
                _ => BeginList::from_payload(&item.payload).is_ok(),
            };
        }
        reader.recycle(item.payload);
    }
    assert!(reader.position() <= b.len() as u64);
    assert!(reader.next().is_err() || reader.next().is_ok_and(|r| r.is_none()));
}

/// A whole stream as it is, which ends at the first checksum that does not match.
pub fn stream(b: &[u8]) {
    read(b);
}

/// A whole stream whose checksums are made right, so that what is wrong with it is in the records.
pub fn sealed(b: &[u8]) {
    let mut writer = Writer::new(Vec::new());
    let mut rest = b;
    while let Some((header, behind)) = rest.split_first_chunk::<RECORD>() {
        let Ok(record) = Record::decode(header, false) else {
            break;
        };
        let len = behind.len().min(record.payload() as usize);
        let (payload, behind) = behind.split_at(len);
        if writer.write_encoded(header, payload).is_err() {
            break;
        }
        rest = behind;
    }
    if writer.flush().is_ok() {
        read(&writer.into_inner());
    }
}
