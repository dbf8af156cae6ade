//! External data representation (RFC 4506): items of four bytes, big-endian, padded with zeros.

/// What was sent is no value of the type that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

/// What decoding returns.
pub type Decoded<T> = Result<T, Garbage>;

/// Reads items from bytes; nothing is copied, and nothing allocated.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the first of these bytes on.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Garbage)?;
        self.0 = tail;
        Ok(head)
    }

    /// An unsigned number of 32 bits.
    pub fn u32(&mut self) -> Decoded<u32> {
        let b = self.take(4)?.first_chunk().ok_or(Garbage)?;
        Ok(u32::from_be_bytes(*b))
    }

    /// An unsigned number of 64 bits.
    pub fn u64(&mut self) -> Decoded<u64> {
        let b = self.take(8)?.first_chunk().ok_or(Garbage)?;
        Ok(u64::from_be_bytes(*b))
    }

    /// A truth value.
    pub fn bool(&mut self) -> Decoded<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// So many bytes, without padding.
    pub fn fixed<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().ok_or(Garbage)?)
    }

    /// Bytes with their number before them, `most` at most.
    pub fn opaque(&mut self, most: usize) -> Decoded<&'a [u8]> {
        let n = self.u32()? as usize;
        if n > most {
            return Err(Garbage);
        }
        let bytes = self.take(n)?;
        self.take(n.wrapping_neg() % 4)?;
        Ok(bytes)
    }

    /// An item that may be there.
    pub fn maybe<T>(&mut self, item: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.bool()? {
            true => item(self).map(Some),
            false => Ok(None),
        }
    }

    /// What is left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Puts items together.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Behind these bytes.
    pub fn after(bytes: Vec<u8>) -> Writer {
        Writer(bytes)
    }

    /// An unsigned number of 32 bits.
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }

    /// An unsigned number of 64 bits.
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }

    /// A truth value.
    pub fn bool(&mut self, v: bool) -> &mut Self {
        self.u32(v.into())
    }

    /// Bytes whose number is known, a multiple of four.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        debug_assert_eq!(bytes.len() % 4, 0);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes with their number before them.
    pub fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self.pad()
    }

    /// Fills the last item up.
    pub fn pad(&mut self) -> &mut Self {
        let end = self.0.len().next_multiple_of(4);
        self.0.resize(end, 0);
        self
    }

    /// The bytes so far, to be changed.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Bytes that `n` bytes take with their number and padding.
pub fn opaque_len(n: usize) -> usize {
    4 + n.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut w = Writer::default();
        w.u32(7)
            .u64(1 << 40)
            .bool(true)
            .opaque(b"abcde")
            .fixed(&[1; 8]);
        assert_eq!(w.len(), 4 + 8 + 4 + opaque_len(5) + 8);
        let bytes = w.into_bytes();
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u32(), r.u64(), r.bool()), (Ok(7), Ok(1 << 40), Ok(true)));
        assert_eq!(r.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!((r.fixed(), r.rest().len()), (Ok([1; 8]), 0));
    }

    #[test]
    fn too_short_and_too_long_is_garbage() {
        assert_eq!(Reader::new(&[0; 3]).u32(), Err(Garbage));
        assert_eq!(Reader::new(&[0; 7]).u64(), Err(Garbage));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).bool(), Err(Garbage));
        assert_eq!(
            Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4]).opaque(9),
            Err(Garbage)
        );
        // The padding is missing.
        assert_eq!(Reader::new(&[0, 0, 0, 1, 9]).opaque(9), Err(Garbage));
        assert_eq!(Reader::new(&[0xff; 8]).opaque(400), Err(Garbage));
        assert_eq!(
            Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]).opaque(4),
            Err(Garbage)
        );
    }
}
