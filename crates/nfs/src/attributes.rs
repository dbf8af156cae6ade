//! Attributes as NFS 3 has them.

use crate::xdr::{Decoded, Garbage, Reader, Writer};
use zpl::attr::mode;
use zpl::{Attr, SetAttr, SetTime, Time};

/// Bytes of attributes.
pub const LEN: usize = 84;

fn kind(m: u32) -> u32 {
    match m & mode::FMT {
        mode::DIR => 2,
        mode::BLK => 3,
        mode::CHR => 4,
        mode::LNK => 5,
        mode::SOCK => 6,
        mode::FIFO => 7,
        _ => 1,
    }
}

/// Times are unsigned in the protocol, and seconds have 32 bits: others are shown as the nearest.
pub fn time(w: &mut Writer, t: Time) {
    w.u32(t.sec.clamp(0, i64::from(u32::MAX)) as u32)
        .u32(t.nsec);
}

/// Writes attributes. `fsid`: number of the file system.
pub fn write(w: &mut Writer, fsid: u64, a: &Attr) {
    let dev = a.rdev as u32;
    w.u32(kind(a.mode)).u32(a.mode & mode::PERM);
    w.u32(u32::try_from(a.nlink).unwrap_or(u32::MAX));
    w.u32(a.uid)
        .u32(a.gid)
        .u64(a.size)
        .u64(a.blocks.saturating_mul(512));
    // As new_encode_dev packs it.
    w.u32((dev >> 8) & 0xfff)
        .u32((dev & 0xff) | ((dev >> 12) & 0xfff00));
    w.u64(fsid).u64(a.ino);
    [a.atime, a.mtime, a.ctime]
        .into_iter()
        .for_each(|t| time(w, t));
}

/// Attributes that may be there.
pub fn maybe(w: &mut Writer, fsid: u64, a: Option<&Attr>) {
    match a {
        Some(a) => write(w.bool(true), fsid, a),
        None => drop(w.bool(false)),
    }
}

/// Attributes of before and after a change; see the head of the crate for those of before.
pub fn wcc(w: &mut Writer, fsid: u64, after: Option<&Attr>) {
    maybe(w.bool(false), fsid, after);
}

/// A time as a client sends it.
pub fn read_time(r: &mut Reader<'_>) -> Decoded<Time> {
    let (sec, nsec) = (r.u32()?, r.u32()?);
    match nsec {
        ..1_000_000_000 => Ok(Time::new(sec.into(), nsec)),
        _ => Err(Garbage),
    }
}

fn set_time(r: &mut Reader<'_>) -> Decoded<Option<SetTime>> {
    Ok(match r.u32()? {
        0 => None,
        1 => Some(SetTime::Now),
        2 => Some(SetTime::To(read_time(r)?)),
        _ => return Err(Garbage),
    })
}

/// Attributes that are to be set.
pub fn read_set(r: &mut Reader<'_>) -> Decoded<SetAttr> {
    Ok(SetAttr {
        mode: r.maybe(Reader::u32)?,
        uid: r.maybe(Reader::u32)?,
        gid: r.maybe(Reader::u32)?,
        size: r.maybe(Reader::u64)?,
        atime: set_time(r)?,
        mtime: set_time(r)?,
        ..SetAttr::default()
    })
}

/// A device number as the POSIX layer has it.
pub fn device(major: u32, minor: u32) -> u64 {
    u64::from((minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_their_length() {
        let a = Attr {
            mode: mode::CHR | 0o4755,
            rdev: device(0x123, 0x45678),
            mtime: Time::new(-5, 3),
            ..Attr::default()
        };
        let mut w = Writer::default();
        write(&mut w, 7, &a);
        let bytes = w.into_bytes();
        assert_eq!(bytes.len(), LEN);
        let r = &mut Reader::new(&bytes);
        assert_eq!((r.u32(), r.u32()), (Ok(4), Ok(0o4755)));
        let r = &mut Reader::new(&bytes[36..]);
        assert_eq!((r.u32(), r.u32(), r.u64()), (Ok(0x123), Ok(0x45678), Ok(7)));
        let r = &mut Reader::new(&bytes[68..]);
        assert_eq!((r.u32(), r.u32()), (Ok(0), Ok(3)), "before 1970");
    }

    #[test]
    fn what_is_to_be_set() {
        let mut w = Writer::default();
        w.bool(true)
            .u32(0o640)
            .bool(false)
            .bool(false)
            .bool(true)
            .u64(9);
        w.u32(1).u32(2).u32(5).u32(6);
        let bytes = w.into_bytes();
        let s = read_set(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((s.mode, s.uid, s.size), (Some(0o640), None, Some(9)));
        assert_eq!(s.atime, Some(SetTime::Now));
        assert_eq!(s.mtime, Some(SetTime::To(Time::new(5, 6))));
        let bad = [&bytes[..bytes.len() - 4], &[0xff; 4]].concat();
        assert_eq!(read_set(&mut Reader::new(&bad)), Err(Garbage));
    }
}
