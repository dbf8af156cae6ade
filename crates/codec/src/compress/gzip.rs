//! gzip-1 … gzip-9: one zlib stream (RFC 1950).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::cell::RefCell;

thread_local! {
    static DECODER: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

pub fn compress(level: u32, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    // A fresh encoder for every block: resetting one whose last block did not fit leaves matches of
    // that block behind (zlib-rs 0.6), and what it then writes cannot be read.
    let mut enc = Compress::new(Compression::new(level), true);
    let mut out = vec![0; max_out];
    match enc.compress(src, &mut out, FlushCompress::Finish) {
        Ok(Status::StreamEnd) => {
            out.truncate(usize::try_from(enc.total_out()).ok()?);
            Some(out)
        }
        _ => None,
    }
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    DECODER.with_borrow_mut(|slot| {
        let dec = match slot {
            Some(dec) => {
                dec.reset(true);
                dec
            }
            None => slot.insert(Decompress::new(true)),
        };
        let mut out = vec![0; lsize];
        match dec.decompress(src, &mut out, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if dec.total_out() == lsize as u64 => Some(out),
            _ => {
                *slot = None;
                None
            }
        }
    })
}
