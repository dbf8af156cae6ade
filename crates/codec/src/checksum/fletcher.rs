//! Fletcher sums (pool format §13.2). The running sums form one dependency chain of a single
//! addition per element each, which a scalar core overlaps completely. Fletcher4 goes through long
//! pieces in lanes (`simd`) where there are vectors wide enough.

use super::Words;

/// Running fletcher4: sums over `u32` elements; also the running checksum of send streams.
#[derive(Clone, Debug)]
pub struct Fletcher4 {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    big_endian: bool,
    partial: [u8; 4],
    have: usize,
}

impl Fletcher4 {
    /// `swapped`: the elements are big-endian.
    pub fn new(swapped: bool) -> Fletcher4 {
        Fletcher4::resume([0; 4], swapped)
    }

    /// Continues from the words of an earlier sum.
    pub fn resume(words: Words, swapped: bool) -> Fletcher4 {
        let [a, b, c, d] = words;
        Fletcher4 {
            a,
            b,
            c,
            d,
            big_endian: swapped,
            partial: [0; 4],
            have: 0,
        }
    }

    fn add(&mut self, w: u32) {
        self.a = self.a.wrapping_add(u64::from(w));
        self.b = self.b.wrapping_add(self.a);
        self.c = self.c.wrapping_add(self.b);
        self.d = self.d.wrapping_add(self.c);
    }

    fn element(&self, b: [u8; 4]) -> u32 {
        if self.big_endian {
            u32::from_be_bytes(b)
        } else {
            u32::from_le_bytes(b)
        }
    }

    /// Adds bytes; pieces may have any length.
    pub fn update(&mut self, mut data: &[u8]) {
        while self.have > 0 && !data.is_empty() {
            self.partial[self.have] = data[0];
            self.have += 1;
            data = &data[1..];
            if self.have == 4 {
                self.have = 0;
                self.add(self.element(self.partial));
            }
        }
        let (body, rest) = data.split_at(data.len() & !3);
        let sums = [self.a, self.b, self.c, self.d];
        let (sums, body) = simd::fletcher4(sums, body, self.big_endian);
        let sums = if self.big_endian {
            run4(sums, body, u32::from_be_bytes)
        } else {
            run4(sums, body, u32::from_le_bytes)
        };
        [self.a, self.b, self.c, self.d] = sums;
        if !rest.is_empty() {
            self.partial = [0; 4];
            self.partial[..rest.len()].copy_from_slice(rest);
            self.have = rest.len();
        }
    }

    /// The checksum so far; an incomplete last element counts as if zeros followed.
    pub fn words(&self) -> Words {
        let mut end = self.clone();
        if end.have > 0 {
            end.partial[end.have..].fill(0);
            end.add(end.element(end.partial));
        }
        [end.a, end.b, end.c, end.d]
    }
}

#[inline(always)]
fn run4(sums: Words, body: &[u8], get: fn([u8; 4]) -> u32) -> Words {
    let [mut a, mut b, mut c, mut d] = sums;
    let mut step = |w: [u8; 4]| {
        a = a.wrapping_add(u64::from(get(w)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    };
    let (blocks, rest) = body.as_chunks::<16>();
    for x in blocks {
        step([x[0], x[1], x[2], x[3]]);
        step([x[4], x[5], x[6], x[7]]);
        step([x[8], x[9], x[10], x[11]]);
        step([x[12], x[13], x[14], x[15]]);
    }
    for x in rest.as_chunks::<4>().0 {
        step(*x);
    }
    [a, b, c, d]
}

/// Running fletcher2: two interleaved sums over `u64` elements.
#[derive(Clone, Debug)]
pub struct Fletcher2 {
    sums: Words,
    big_endian: bool,
    partial: [u8; 16],
    have: usize,
}

impl Fletcher2 {
    /// `swapped`: the elements are big-endian.
    pub fn new(swapped: bool) -> Fletcher2 {
        Fletcher2 {
            sums: [0; 4],
            big_endian: swapped,
            partial: [0; 16],
            have: 0,
        }
    }

    /// Adds bytes; pieces may have any length.
    pub fn update(&mut self, mut data: &[u8]) {
        while self.have > 0 && !data.is_empty() {
            self.partial[self.have] = data[0];
            self.have += 1;
            data = &data[1..];
            if self.have == 16 {
                self.have = 0;
                self.sums = run2(self.sums, &[self.partial], self.big_endian);
            }
        }
        let (body, rest) = data.as_chunks::<16>();
        self.sums = run2(self.sums, body, self.big_endian);
        if !rest.is_empty() {
            self.partial = [0; 16];
            self.partial[..rest.len()].copy_from_slice(rest);
            self.have = rest.len();
        }
    }

    /// The checksum so far; an incomplete last pair counts as if zeros followed.
    pub fn words(&self) -> Words {
        let mut last = self.partial;
        last[self.have..].fill(0);
        if self.have > 0 {
            run2(self.sums, &[last], self.big_endian)
        } else {
            self.sums
        }
    }
}

fn run2(sums: Words, body: &[[u8; 16]], big_endian: bool) -> Words {
    let [mut a, mut b, mut aa, mut bb] = sums;
    for x in body {
        let x = u128::from_le_bytes(*x);
        let (mut lo, mut hi) = (x as u64, (x >> 64) as u64);
        if big_endian {
            lo = lo.swap_bytes();
            hi = hi.swap_bytes();
        }
        a = a.wrapping_add(lo);
        b = b.wrapping_add(hi);
        aa = aa.wrapping_add(a);
        bb = bb.wrapping_add(b);
    }
    [a, b, aa, bb]
}
