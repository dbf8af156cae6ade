//! lz4: a `u32` big-endian length, then that many bytes of one raw LZ4 block.

use std::cell::RefCell;

const HEADER: usize = 4;

thread_local! {
    /// The encoder wants room for the worst case; the block pipeline wants it small.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub fn compress(src: &[u8], max_out: usize) -> Option<Vec<u8>> {
    let room = max_out.checked_sub(HEADER)?;
    SCRATCH.with_borrow_mut(|buf| {
        let worst = lz4_flex::block::get_maximum_output_size(src.len());
        if buf.len() < worst {
            buf.resize(worst, 0);
        }
        let n = lz4_flex::block::compress_into(src, buf).ok()?;
        if n > room {
            return None;
        }
        let mut out = Vec::with_capacity(HEADER + n);
        out.extend_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
        out.extend_from_slice(buf.get(..n)?);
        Some(out)
    })
}

pub fn decompress(src: &[u8], lsize: usize) -> Option<Vec<u8>> {
    let (head, rest) = src.split_first_chunk::<HEADER>()?;
    let body = rest.get(..u32::from_be_bytes(*head) as usize)?;
    let mut out = vec![0; lsize];
    let n = lz4_flex::block::decompress_into(body, &mut out).ok()?;
    (n == lsize).then_some(out)
}
