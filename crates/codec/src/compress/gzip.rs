//! gzip-1 … gzip-9: one zlib stream (RFC 1950).

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::cell::RefCell;

thread_local! {
    /// The last used encoder and its level: its state is a quarter of a megabyte.
    static ENCODER: RefCell<Option<(u32, Compress)>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

pub fn compress(level: u32, src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|slot| {
        let enc = match slot {
            Some((l, enc)) if *l == level => {
                enc.reset();
                enc
            }
            _ => {
                &mut slot
                    .insert((level, Compress::new(Compression::new(level), true)))
                    .1
            }
        };
        let mut out = vec![0; max_out];
        match enc.compress(src, &mut out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => {
                out.truncate(usize::try_from(enc.total_out()).ok()?);
                Some(out)
            }
            _ => None,
        }
    })
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
            _ => None,
        }
    })
}
