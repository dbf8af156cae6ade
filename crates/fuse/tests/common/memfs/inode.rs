//! Files and directories of the file system in memory.

use super::{pieces, Body, Dir, File, Inode, PIECE};
use fuse::*;
use std::sync::Arc;

impl File {
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        if self.blocks.len() < pieces(end) {
            self.blocks.resize(pieces(end), None);
        }
        let (mut at, mut data) = (offset, data);
        while !data.is_empty() {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = data.len().min(PIECE - o);
            let b = self.blocks[i].get_or_insert_with(|| Arc::new(vec![0; PIECE]));
            Arc::make_mut(b)[o..o + n].copy_from_slice(&data[..n]);
            data = &data[n..];
            at += n as u64;
        }
        self.size = self.size.max(end);
    }

    pub(super) fn read(&self, offset: u64, size: u32, out: &mut ReadBuf) {
        let end = self.size.min(offset + size as u64);
        let mut at = offset;
        while at < end {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = ((end - at) as usize).min(PIECE - o);
            match self.blocks.get(i) {
                Some(Some(b)) => out.push(b.clone(), o..o + n),
                _ => out.zeros(n),
            }
            at += n as u64;
        }
    }

    pub(super) fn zero(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let (i, o) = ((at / PIECE as u64) as usize, (at % PIECE as u64) as usize);
            let n = ((to - at) as usize).min(PIECE - o);
            if let Some(slot) = self.blocks.get_mut(i) {
                if n == PIECE {
                    *slot = None;
                } else if let Some(b) = slot {
                    Arc::make_mut(b)[o..o + n].fill(0);
                }
            }
            at += n as u64;
        }
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
            self.blocks.truncate(pieces(size));
        }
        self.size = size;
    }

    pub(super) fn seek(&self, offset: u64, data: bool) -> Result<u64> {
        if offset >= self.size {
            return Err(Errno::ENXIO);
        }
        let mut at = offset;
        while at < self.size {
            let i = (at / PIECE as u64) as usize;
            if self.blocks.get(i).is_some_and(|b| b.is_some()) == data {
                return Ok(at);
            }
            at = (i as u64 + 1) * PIECE as u64;
        }
        if data {
            Err(Errno::ENXIO)
        } else {
            Ok(self.size)
        }
    }
}

impl Dir {
    pub(super) fn new(parent: u64) -> Dir {
        Dir {
            parent,
            next: 3, // 1 and 2 are behind "." and ".."
            ..Dir::default()
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name
            .get(name)
            .and_then(|c| self.by_cookie.get(c))
            .map(|e| e.1)
    }

    pub(super) fn insert(&mut self, name: &[u8], node: u64, kind: u32) {
        let c = self.next;
        self.next += 1;
        self.by_name.insert(name.to_vec(), c);
        self.by_cookie.insert(c, (name.to_vec(), node, kind));
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(c) = self.by_name.remove(name) {
            self.by_cookie.remove(&c);
        }
    }
}

impl Inode {
    pub(super) fn dir(&mut self) -> Result<&mut Dir> {
        match &mut self.body {
            Body::Dir(d) => Ok(d),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn file(&mut self) -> Result<&mut File> {
        match &mut self.body {
            Body::File(f) => Ok(f),
            Body::Dir(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn attr(&self) -> Attr {
        let mut a = self.attr;
        match &self.body {
            Body::File(f) => {
                a.size = f.size;
                let held = f.blocks.iter().filter(|b| b.is_some()).count();
                a.blocks = (held * PIECE / 512) as u64;
            }
            Body::Dir(d) => a.size = d.by_name.len() as u64 + 2,
            Body::Link(t) => a.size = t.len() as u64,
            Body::Other => {}
        }
        a
    }

    pub(super) fn touch(&mut self) {
        self.attr.mtime = Time::now();
        self.attr.ctime = self.attr.mtime;
    }

    pub(super) fn kill_suidgid(&mut self) {
        let m = &mut self.attr.mode;
        *m &= !libc::S_ISUID;
        if *m & libc::S_IXGRP != 0 {
            *m &= !libc::S_ISGID;
        }
    }
}
