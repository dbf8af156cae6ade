//! Attributes of files and directories: znodes of old file systems, system attributes of new ones.

use crate::context::Ctx;
use crate::fmt;
use base::{Error, Result};
use disk::sa::{self, ZplAttrs};
use disk::xattr::SaXattrs;
use disk::znode::ZnodePhys;
use disk::{DnodePhys, ObjType};
use std::io::Write;
use zap::Zap;

/// Names longer than this in a path are not believed.
const MAX_PATH: usize = 1 << 16;

/// What is shown of a file.
#[derive(Default)]
pub struct File {
    pub uid: u64,
    pub gid: u64,
    pub times: [[u64; 2]; 4],
    pub gen: u64,
    pub mode: u64,
    pub size: u64,
    pub parent: u64,
    pub links: u64,
    pub pflags: u64,
    pub projid: Option<u64>,
    /// Those of old file systems have a place in every object.
    pub xattr: Option<u64>,
    pub rdev: Option<u64>,
    /// Packed extended attributes.
    pub dxattr: Option<Vec<u8>>,
    pub symlink: Option<Vec<u8>>,
    pub aces: Option<u64>,
}

/// Reads the attributes of an object.
pub fn load(c: &Ctx, dn: &DnodePhys) -> Result<File> {
    if dn.bonus_type == ObjType::ZNODE {
        let z = ZnodePhys::decode(&dn.bonus)?;
        return Ok(File {
            uid: z.uid,
            gid: z.gid,
            times: [z.atime, z.mtime, z.ctime, z.crtime],
            gen: z.gen,
            mode: z.mode,
            size: z.size,
            parent: z.parent,
            links: z.links,
            pflags: z.flags,
            xattr: Some(z.xattr),
            rdev: Some(z.rdev),
            ..File::default()
        });
    }
    let tables = c
        .sa()
        .as_ref()
        .map_err(|e| Error::new(e.kind, e.to_string()))?;
    let Some((registry, layouts)) = &tables.sa else {
        return Err(Error::damaged("system attributes without their tables"));
    };
    let mut bonus = dn.bonus.clone();
    sa::to_little_endian(&mut bonus, registry, layouts)?;
    let spill = match dn.spill.filter(|b| !b.is_hole()) {
        Some(bp) => {
            let mut b = c.set.read(&bp)?.to_vec();
            sa::to_little_endian(&mut b, registry, layouts)?;
            Some(b)
        }
        None => None,
    };
    let a = sa::parse(&bonus, spill.as_deref(), registry, layouts)?;
    let n: ZplAttrs = registry.zpl();
    let word = |id: u16| -> Result<u64> { Ok(a.get_u64(id)?.unwrap_or(0)) };
    let pair = |id: u16| -> Result<[u64; 2]> { Ok(a.get_u64_pair(id)?.unwrap_or([0, 0])) };
    Ok(File {
        uid: word(n.uid)?,
        gid: word(n.gid)?,
        times: [
            pair(n.atime)?,
            pair(n.mtime)?,
            pair(n.ctime)?,
            pair(n.crtime)?,
        ],
        gen: word(n.gen)?,
        mode: word(n.mode)?,
        size: word(n.size)?,
        parent: word(n.parent)?,
        links: word(n.links)?,
        pflags: word(n.flags)?,
        projid: a.get_u64(n.projid)?,
        xattr: Some(word(n.xattr)?).filter(|x| *x != 0),
        rdev: Some(word(n.rdev)?).filter(|r| *r != 0),
        dxattr: a.get(n.dxattr).map(<[u8]>::to_vec),
        symlink: a.get(n.symlink).map(<[u8]>::to_vec),
        aces: a.get_u64(n.dacl_count)?,
    })
}

/// The path of an object in its file system, as its parents name it.
fn path(c: &Ctx, object: u64, file: &File) -> Result<String> {
    const MASK: u64 = (1 << 48) - 1;
    let tables = c
        .sa()
        .as_ref()
        .map_err(|e| Error::new(e.kind, e.to_string()))?;
    let os = c.os.as_ref().ok_or_else(|| Error::damaged("not open"))?;
    let mut parts = Vec::new();
    let (mut at, mut parent) = (object, file.parent);
    let mut attribute = file.pflags & disk::znode::flag::XATTR != 0;
    let mut len = 0;
    while at != tables.root {
        let dn = c
            .set
            .dnode(parent)?
            .ok_or_else(|| Error::damaged(format!("no object {parent}")))?;
        let above = load(c, &dn)?;
        let hidden = attribute && above.xattr == Some(at);
        let name = match hidden {
            true => "<xattrdir>".into(),
            false => {
                let dir = os.hold(parent)?;
                match Zap::new(&*dir).longname(true).name_of(at, MASK)? {
                    Some(n) => fmt::text(&n),
                    None => return Err(Error::damaged(format!("{parent} has no entry of {at}"))),
                }
            }
        };
        len += name.len() + 1;
        if len > MAX_PATH || parent == at {
            return Err(Error::damaged("parents in a loop"));
        }
        parts.push(name);
        at = parent;
        parent = above.parent;
        attribute = above.pflags & disk::znode::flag::XATTR != 0;
    }
    if parts.is_empty() {
        return Ok("/".into());
    }
    Ok(parts.iter().rev().fold(String::new(), |p, n| p + "/" + n))
}

/// The attributes of an object, as text.
pub fn show(c: &Ctx, object: u64, dn: &DnodePhys, depth: usize, out: &mut dyn Write) -> Result<()> {
    let f = load(c, dn)?;
    match path(c, object, &f) {
        _ if depth < 5 => {}
        Ok(p) => writeln!(out, "\tpath\t{p}")?,
        // What was unlinked while it was open has no path.
        Err(_) if f.links == 0 => writeln!(out, "\tpath\ton delete queue")?,
        Err(e) => writeln!(out, "\tpath\t???<object#{object}>\t({e})")?,
    }
    if let Some(t) = &f.symlink {
        writeln!(out, "\ttarget\t{}", fmt::text(t))?;
    }
    for (name, id) in [("uid", f.uid), ("gid", f.gid)] {
        match id >> 32 {
            0 => writeln!(out, "\t{name}     {id}")?,
            d => writeln!(out, "\t{name}     {id:x} [domain {d}]")?,
        }
    }
    for (name, t) in ["atime", "mtime", "ctime", "crtime"].iter().zip(f.times) {
        writeln!(out, "\t{name}\t{}", fmt::time(t[0]))?;
    }
    writeln!(out, "\tgen\t{}", f.gen)?;
    writeln!(out, "\tmode\t{:o}", f.mode)?;
    writeln!(out, "\tsize\t{}", f.size)?;
    writeln!(out, "\tparent\t{}", f.parent)?;
    writeln!(out, "\tlinks\t{}", f.links)?;
    writeln!(out, "\tpflags\t{:x}", f.pflags)?;
    if let Some(p) = f.projid {
        writeln!(out, "\tprojid\t{p}")?;
    }
    if let Some(x) = f.xattr {
        writeln!(out, "\txattr\t{x}")?;
    }
    if let Some(r) = f.rdev {
        writeln!(out, "\trdev\t0x{r:016x}")?;
    }
    if let (Some(n), true) = (f.aces, depth >= 6) {
        writeln!(out, "\tacl\t{n} entries")?;
    }
    if let Some(b) = f.dxattr.filter(|b| !b.is_empty()) {
        let list = SaXattrs::unpack(&b)?;
        writeln!(
            out,
            "\tSA xattrs: {} bytes, {} entries\n",
            b.len(),
            list.list.len()
        )?;
        for (name, value) in &list.list {
            let text: String = value
                .iter()
                .map(|b| match b {
                    0x21..=0x7e if *b != b'\\' => (*b as char).to_string(),
                    b'\\' => "\\\\".into(),
                    b => format!("\\{b:03o}"),
                })
                .collect();
            writeln!(out, "\t\t{} = {text}", fmt::text(name))?;
        }
    }
    Ok(())
}
