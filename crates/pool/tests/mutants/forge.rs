//! Makes mistakes: in sectors, and in the content of blocks.

use base::Txg;
use codec::checksum;
use disk::label::{label_offset, DATA_START, NVLIST_OFFSET, NVLIST_SIZE};
use disk::{BlkPtr, Checksum, Compression, DnodePhys, Dva, ObjType, BP_SIZE};
use env::Disk;
use pool::{OpenOptions, Pool};
use std::collections::HashSet;
use std::sync::Arc;
use vdev::testing::{mem_env, MemDisk, SeededRng};

/// Most blocks of a fixture that are remembered.
const MOST: usize = 20_000;
/// Where new blocks are put: that far from the end of the data area, which fixtures do not use.
const SPARE: u64 = 12 << 20;

/// A block, its content, and where the pointer to it is.
pub struct Block {
    bp: BlkPtr,
    data: Arc<Vec<u8>>,
    /// Index of the block that holds the pointer, and at which byte; `None`: the uberblock.
    parent: Option<(usize, usize)>,
}

struct Walker<'a> {
    pool: &'a Pool,
    seen: HashSet<(u64, u64)>,
    out: Vec<Block>,
}

impl Walker<'_> {
    fn push(&mut self, bp: &BlkPtr, parent: Option<(usize, usize)>) -> Option<usize> {
        if bp.is_hole() || bp.is_embedded() || bp.is_redacted() || self.out.len() >= MOST {
            return None;
        }
        if !self
            .seen
            .insert((bp.dva(0).offset(), bp.logical_birth().number()))
        {
            return None;
        }
        let plain = bp.level() == 0 && bp.obj_type() == ObjType::PLAIN_FILE_CONTENTS;
        // Of data one block in sixteen is enough.
        if plain && self.seen.len() % 16 != 0 {
            return None;
        }
        let data = self.pool.zio().read(bp).ok()?;
        self.out.push(Block {
            bp: *bp,
            data,
            parent,
        });
        Some(self.out.len() - 1)
    }

    fn objset(&mut self, bp: &BlkPtr, parent: Option<(usize, usize)>) {
        let Some(me) = self.push(bp, parent) else {
            return;
        };
        let data = self.out[me].data.clone();
        for at in [0, 1024, 1536, 2048] {
            if let Some(Ok(Some(dn))) = data.get(at..).map(DnodePhys::decode) {
                self.dnode(me, at, &dn, parent.is_none());
            }
        }
    }

    fn dnode(&mut self, me: usize, at: usize, dn: &DnodePhys, mos: bool) {
        for (i, bp) in dn.blkptr.iter().enumerate() {
            self.block(bp, (me, at + 64 + i * BP_SIZE), dn.obj_type, mos);
        }
        if let Some(bp) = &dn.spill {
            self.push(bp, Some((me, at + dn.size() - BP_SIZE)));
        }
        if mos && dn.bonus_type == ObjType::DSL_DATASET {
            let at = at + 64 + dn.blkptr.len() * BP_SIZE + 128;
            let data = self.out[me].data.clone();
            if let Some(Ok(bp)) = data.get(at..).map(|b| BlkPtr::read(b, false)) {
                self.objset(&bp, Some((me, at)));
            }
        }
    }

    fn block(&mut self, bp: &BlkPtr, parent: (usize, usize), ty: ObjType, mos: bool) {
        let Some(me) = self.push(bp, Some(parent)) else {
            return;
        };
        let data = self.out[me].data.clone();
        if bp.level() > 0 {
            for i in 0..data.len() / BP_SIZE {
                if let Ok(child) = BlkPtr::at(&data, i) {
                    self.block(&child, (me, i * BP_SIZE), ty, mos);
                }
            }
        } else if ty == ObjType::DNODE {
            let mut at = 0;
            while at < data.len() {
                match DnodePhys::decode(&data[at..]) {
                    Ok(Some(dn)) => {
                        self.dnode(me, at, &dn, mos);
                        at += dn.size().max(512);
                    }
                    _ => at += 512,
                }
            }
        }
    }
}

/// All blocks of a pool on one disk.
pub fn collect(disks: &[Arc<MemDisk>]) -> Vec<Block> {
    let (env, all) = mem_env(1);
    for (i, d) in disks.iter().enumerate() {
        all.put(&format!("/d{i}"), d.fork());
    }
    let found = vdev::discover(&env, &all.paths()).pools;
    let options = OpenOptions {
        readonly: true,
        ..OpenOptions::default()
    };
    let pool = Pool::open(env, &found[0].config, options).expect("the fixture as it is");
    let mut w = Walker {
        pool: &pool,
        seen: HashSet::new(),
        out: Vec::new(),
    };
    w.objset(&pool.mos().root(), None);
    w.out
}

fn pick<'a, T>(dice: &SeededRng, list: &'a [T]) -> &'a T {
    &list[dice.below(list.len() as u64) as usize]
}

/// One mistake in `b`.
fn spoil(b: &mut [u8], dice: &SeededRng) {
    if b.is_empty() {
        return;
    }
    let at = dice.below(b.len() as u64) as usize;
    let words = [
        0,
        1,
        2,
        7,
        0xff,
        0xffff,
        1 << 31,
        u64::from(u32::MAX),
        1 << 40,
        1 << 62,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
        b.len() as u64,
    ];
    let put = |b: &mut [u8], at: usize, n: usize, v: u64| {
        let at = at / n * n;
        if let Some(to) = b.get_mut(at..at + n) {
            to.copy_from_slice(&v.to_le_bytes()[..n]);
        }
    };
    match dice.below(10) {
        0 => b[at] ^= 1 << dice.below(8),
        1 => b[at] = dice.next() as u8,
        2 => put(b, at, 2, *pick(dice, &words)),
        3 => put(b, at, 4, *pick(dice, &words)),
        4 | 5 => put(b, at, 8, *pick(dice, &words)),
        6 => put(b, at, 8, dice.next()),
        7 => {
            // Something else from the same block.
            let from = dice.below(b.len() as u64) as usize / 128 * 128;
            let (to, n) = (at / 128 * 128, 128.min(b.len()));
            if from + n <= b.len() && to + n <= b.len() {
                b.copy_within(from..from + n, to);
            }
        }
        8 => {
            let end = (at + dice.below(512) as usize).min(b.len());
            b[at..end].fill(dice.next() as u8);
        }
        _ => {
            // Beginnings matter most: headers, counts, types.
            let at = dice.below(128.min(b.len() as u64)) as usize;
            put(b, at, 1, dice.next());
        }
    }
}

/// Changes one block and makes everything above it right.
pub fn block(disk: &Arc<MemDisk>, blocks: &[Block], dice: &SeededRng) {
    let mut me = dice.below(blocks.len() as u64) as usize;
    // Data of files tell little.
    for _ in 0..3 {
        if blocks[me].bp.obj_type() == ObjType::PLAIN_FILE_CONTENTS && blocks[me].bp.level() == 0 {
            me = dice.below(blocks.len() as u64) as usize;
        }
    }
    let size = disk.geometry().size;
    let mut place = (size - (1 << 20) - SPARE) / 4096 * 4096 - DATA_START;
    let mut data = blocks[me].data.to_vec();
    if dice.below(6) == 0 && data.len() >= BP_SIZE {
        // A pointer to something else: another block, or (without a checksum) this very one.
        let mut bp = pick(dice, blocks).bp;
        if dice.below(2) == 0 {
            bp = pointer(&blocks[me].bp, place, &data, Checksum::OFF.number());
        }
        let (slot, slots) = match blocks[me].parent {
            _ if blocks[me].bp.level() > 0 => (0, data.len() / BP_SIZE),
            _ => (64, 1),
        };
        let at = slot + dice.below(slots.max(1) as u64) as usize * BP_SIZE;
        if let Some(to) = data.get_mut(at..at + BP_SIZE) {
            to.copy_from_slice(&bp.to_bytes());
        }
    } else {
        for _ in 0..1 + dice.below(4) {
            spoil(&mut data, dice);
        }
    }
    loop {
        disk.poke(DATA_START + place, &data);
        let bp = pointer(&blocks[me].bp, place, &data, Checksum::FLETCHER4.number());
        place += base::roundup(data.len() as u64, 4096);
        match blocks[me].parent {
            Some((parent, at)) => {
                me = parent;
                data = blocks[me].data.to_vec();
                data[at..at + BP_SIZE].copy_from_slice(&bp.to_bytes());
            }
            None => {
                for ashift in [9, 12] {
                    let Some(mut ub) = vdev::label::best_uberblock(&**disk, ashift, Txg::MAX)
                    else {
                        continue;
                    };
                    ub.rootbp = bp;
                    let slot = ub.slot(ashift, false);
                    vdev::label::write_uberblock(&**disk, &ub, ashift, slot).expect("uberblock");
                    return;
                }
                return;
            }
        }
    }
}

/// A pointer like `old`, to bytes at another place.
fn pointer(old: &BlkPtr, place: u64, data: &[u8], alg: u8) -> BlkPtr {
    let n = data.len();
    let mut bp = BlkPtr::new(
        old.obj_type(),
        old.level(),
        n,
        n,
        Compression::OFF,
        Checksum::new(alg),
        old.logical_birth(),
    );
    bp.set_fill(old.fill());
    let asize = base::roundup(n as u64, 4096);
    bp.set_dva(0, Dva::new(0, place, asize, false));
    if alg != Checksum::OFF.number() {
        bp.set_checksum(
            checksum::compute(Checksum::new(alg), data, false, &[0; 32]).expect("checksum"),
        );
    }
    bp
}

/// Changes sectors of any disks.
pub fn sectors(disks: &[Arc<MemDisk>], dice: &SeededRng) {
    for _ in 0..1 + dice.below(24) {
        let disk = pick(dice, disks);
        let size = disk.geometry().size;
        let mut used = Vec::new();
        disk.for_each_chunk(&mut |at, c| used.push((at, c.len() as u64)));
        let (at, len) = *pick(dice, &used);
        let at = at + dice.below(len / 512) * 512;
        match dice.below(12) {
            0 => label(disk, dice),
            1 if dice.below(8) == 0 => disk.resize(dice.below(size) / 512 * 512),
            n => {
                let mut b = vec![0; 512 << dice.below(4)];
                disk.peek(at, &mut b);
                match n {
                    2 => b.fill(0),
                    3 => b.iter_mut().for_each(|x| *x = dice.next() as u8),
                    4 => {
                        let (from, _) = *pick(dice, &used);
                        disk.peek(from, &mut b);
                    }
                    _ => spoil(&mut b, dice),
                }
                disk.poke(at, &b);
            }
        }
    }
}

/// Changes the configuration in a label under a right checksum.
fn label(disk: &Arc<MemDisk>, dice: &SeededRng) {
    let size = disk.geometry().size;
    let Some(at) = label_offset(dice.below(4) as usize, size) else {
        return;
    };
    let at = at + NVLIST_OFFSET;
    if at + NVLIST_SIZE as u64 > size {
        return;
    }
    let mut b = vec![0; NVLIST_SIZE];
    disk.peek(at, &mut b);
    for _ in 0..1 + dice.below(3) {
        spoil(&mut b[..3000], dice);
    }
    if checksum::embed(Checksum::LABEL, &mut b, &[at, 0, 0, 0]).is_ok() {
        disk.poke(at, &b);
    }
}
