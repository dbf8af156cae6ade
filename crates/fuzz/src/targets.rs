//! One function for each decoder. Each takes any bytes, and uses what it gets of them as its callers
//! do.

use crate::{apply, nfs_calls, streams};
use base::{Block, Txg};
use codec::{checksum, compress};
use disk::sa::{self, Layouts, Registry};
use disk::{BlkPtr, Checksum, Compression, DnodePhys, NvList};
use std::fs::File;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zap::mem::MemStore;
use zap::Zap;

/// A decoder under test.
pub struct Target {
    pub name: &'static str,
    /// Kind of good inputs it begins with.
    pub corpus: &'static str,
    /// Longest input.
    pub max: usize,
    pub run: fn(&[u8]),
}

const fn t(name: &'static str, corpus: &'static str, max: usize, run: fn(&[u8])) -> Target {
    Target {
        name,
        corpus,
        max,
        run,
    }
}

/// All of them.
pub static TARGETS: [Target; 37] = [
    t("nvlist", "nvlist", 32 << 10, nvlist),
    t("label", "nvlist", 112 << 10, label),
    t("vdev-tree", "nvlist", 32 << 10, vdev_tree),
    t("uberblock", "uberblock", 8 << 10, uberblock),
    t("blkptr", "blkptr", 1024, blkptr),
    t("gang", "gang", 4096, gang),
    t("dnode", "dnode", 4096, dnode),
    t("objset", "objset", 4096, objset),
    t("zap", "zap", 64 << 10, zap_any),
    t("sa", "sa", 8 << 10, system_attributes),
    t("znode", "znode", 320, znode),
    t("xattr", "sa", 4096, xattr),
    t("acl", "znode", 2048, acl),
    t("fuid", "fuid", 4096, fuid),
    t("dsl", "bonus", 1024, dsl_bonus),
    t("spacemap", "spacemap", 2048, spacemap),
    t("zil", "zil-block", 32 << 10, zil_block),
    t("zil-record", "zil-record", 4096, zil_record),
    t("ddt", "words", 4096, ddt),
    t("history", "history", 16 << 10, history),
    t("indirect", "words", 4096, indirect),
    t("partition", "partition", 40 << 10, partition),
    t("stream", "stream", 32 << 10, streams::stream),
    t("stream-sealed", "stream", 32 << 10, streams::sealed),
    t("stream-apply", "stream", 32 << 10, apply::apply),
    t("stream-record", "stream-record", 512, streams::record),
    t("stream-lists", "stream-list", 8 << 10, streams::lists),
    t("token", "token", 1024, streams::token),
    t("lz4", "lz4", 8 << 10, |b| unpack(Compression::LZ4, b)),
    t("lzjb", "lzjb", 8 << 10, |b| unpack(Compression::LZJB, b)),
    t("gzip", "gzip", 8 << 10, |b| unpack(Compression::GZIP_6, b)),
    t("zle", "zle", 8 << 10, |b| unpack(Compression::ZLE, b)),
    t("zstd", "zstd", 8 << 10, |b| unpack(Compression::ZSTD, b)),
    t("messages", "messages", 8 << 10, messages),
    t("nbd", "nbd", 8 << 10, nbd_client),
    t("nbd-server", "nbd-server", 8 << 10, nbd_server),
    t("nfs", "nfs", 8 << 10, nfs_calls::calls),
];

/// The target of that name; `fuse` is one too.
pub fn target(name: &str) -> Option<&'static Target> {
    static FUSE: Target = t("fuse", "fuse", 4096, fuse_request);
    match name {
        "fuse" => Some(&FUSE),
        _ => TARGETS.iter().find(|t| t.name == name),
    }
}

/// What a client of the NBD server may say, against an export of 1 MiB that holds nothing but zeros.
fn nbd_client(b: &[u8]) {
    struct Zeros;
    impl nbd::Export for Zeros {
        fn size(&self) -> u64 {
            1 << 20
        }
        fn block_size(&self) -> u32 {
            4096
        }
        fn is_read_only(&self) -> bool {
            false
        }
        fn read(&self, _: u64, buf: &mut [u8]) -> base::Result<()> {
            buf.fill(0);
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8], _: bool) -> base::Result<()> {
            assert!(offset + data.len() as u64 <= self.size());
            Ok(())
        }
        fn flush(&self) -> base::Result<()> {
            Ok(())
        }
        fn trim(&self, offset: u64, len: u64, _: bool) -> base::Result<()> {
            assert!(offset + len <= self.size());
            Ok(())
        }
        fn zero(&self, offset: u64, len: u64, fua: bool) -> base::Result<()> {
            self.trim(offset, len, fua)
        }
        fn extent(&self, offset: u64) -> base::Result<nbd::Extent> {
            let end = (offset + 1).next_multiple_of(4096);
            let data = end % 8192 == 0;
            Ok(nbd::Extent { end, data })
        }
        fn cache(&self, _: u64, _: u64) {}
    }
    impl nbd::Exports for Zeros {
        fn names(&self) -> base::Result<Vec<String>> {
            Ok(vec!["v".into()])
        }
        fn open(&self, name: &str) -> base::Result<Arc<dyn nbd::Export>> {
            match name {
                "v" => Ok(Arc::new(Zeros)),
                _ => Err(base::Kind::NotFound.into()),
            }
        }
    }
    let options = nbd::Options {
        threads: 1,
        chosen: &|| {},
        tls: None,
        hang_up: &|| {},
    };
    let _ = black_box(nbd::serve(b, std::io::sink(), &Zeros, &options));
}

/// What a server of network block devices may say to a pool's device, and what an address may be.
fn nbd_server(b: &[u8]) {
    use nbd::client::{Address, Connection, Streams};
    const PATIENCE: Duration = Duration::from_millis(20);
    let _ = black_box(std::str::from_utf8(b).map(Address::parse));
    let streams = Streams {
        from: Box::new(std::io::Cursor::new(b.to_vec())),
        to: Box::new(std::io::sink()),
        hang_up: Box::new(|| ()),
        set_limit: Box::new(|_| Ok(())),
    };
    let Ok(address) = Address::parse("nbd://server/v") else {
        return;
    };
    let Ok(c) = Connection::over(streams, &address, PATIENCE, PATIENCE) else {
        return;
    };
    assert!(c.info().least.is_power_of_two() && c.info().preferred >= c.info().least);
    if let Ok(data) = c.read(0, 512) {
        assert_eq!(data.len(), 512);
    }
    let _ = black_box((c.write(0, &[0; 512]), c.flush(), c.trim(0, 512)));
}

fn nvlist(b: &[u8]) {
    let Ok(list) = NvList::unpack(b) else { return };
    black_box(list.dump(4));
    // What was read can be written, and reads the same again.
    let again = NvList::unpack(&list.pack_xdr());
    assert!(again.is_ok(), "a list that was read cannot be read again");
}

fn label(b: &[u8]) {
    let _ = black_box(disk::label::unpack_config(b));
    let _ = black_box(disk::label::BootEnv::decode(b));
    let _ = black_box(checksum::verify_embedded(Checksum::LABEL, b, &[0; 4]));
}

fn env() -> env::Env {
    static ENV: OnceLock<env::Env> = OnceLock::new();
    ENV.get_or_init(env_linux::linux_env).clone()
}

/// Configurations as import reads them: every kind of vdev, dRAID among them.
fn vdev_tree(b: &[u8]) {
    let Ok(list) = NvList::unpack(b) else { return };
    let Some(top) = list.get_nvlist("vdev_tree") else {
        return;
    };
    let root = match top.get_str("type") {
        Some("root") => top.clone(),
        // Labels hold only their own top-level vdev.
        _ => {
            let mut root = NvList::new();
            root.set("type", "root");
            root.set("id", 0u64);
            root.set("guid", 1u64);
            root.set("children", vec![top.clone()]);
            root
        }
    };
    let Ok(tree) = vdev::VdevTree::from_config(env(), &root) else {
        return;
    };
    black_box(tree.config(true));
    for v in tree.all() {
        black_box((v.name(), v.metaslab_count(), v.guid_sum()));
    }
    for top in tree.tops().iter() {
        for size in [512, 4096, 131072, 16 << 20] {
            black_box(top.asize_for(size));
        }
        black_box(top.deflate_ratio());
    }
}

fn uberblock(b: &[u8]) {
    let Ok(ub) = disk::Uberblock::decode(b) else {
        return;
    };
    black_box((ub.rank(), ub.mmp_interval_ms(), ub.mmp_fail_intervals()));
    black_box((ub.reflow_offset(), ub.scratch_state(), ub.slot(12, true)));
    pointer(&ub.rootbp);
}

fn pointer(bp: &BlkPtr) {
    black_box(format!("{bp:?}"));
    black_box((bp.lsize(), bp.psize(), bp.asize(), bp.fill(), bp.ucsize()));
    black_box((
        bp.birth(),
        bp.dvas(),
        bp.is_encrypted(),
        bp.embedded_payload(),
    ));
    black_box(disk::ddt::DdtKey::of(bp));
    if bp.sanity(4).is_ok() && bp.is_embedded() && bp.compress() != Compression::OFF {
        let _ = compress::decompress(bp.compress(), &bp.embedded_payload(), bp.lsize());
    }
}

fn blkptr(b: &[u8]) {
    for chunk in b.chunks(disk::BP_SIZE) {
        for swap in [false, true] {
            if let Ok(bp) = BlkPtr::read(chunk, swap) {
                pointer(&bp);
            }
        }
    }
}

fn gang(b: &[u8]) {
    let _ = black_box(checksum::verify_embedded(
        Checksum::GANG_HEADER,
        b,
        &[1, 2, 3, 0],
    ));
    for i in 0..b.len().saturating_sub(40) / disk::BP_SIZE {
        if let Ok(bp) = BlkPtr::at(b, i) {
            pointer(&bp);
        }
    }
}

fn one_dnode(dn: &DnodePhys) {
    black_box((
        dn.block_size(),
        dn.size(),
        dn.bonus_space(),
        dn.used_bytes(),
        dn.epb_shift(),
    ));
    black_box(pool_owner(dn));
    dn.blkptr.iter().chain(&dn.spill).for_each(pointer);
}

fn pool_owner(dn: &DnodePhys) -> bool {
    let registry = tables();
    sa::index(&dn.bonus, &registry.0, &registry.1).is_ok()
}

fn dnode(b: &[u8]) {
    let mut slot = 0;
    while (slot + 1) * 512 <= b.len() {
        match DnodePhys::decode(&b[slot * 512..]) {
            Ok(Some(dn)) => {
                one_dnode(&dn);
                slot += usize::from(dn.slots).max(1);
            }
            _ => slot += 1,
        }
    }
    // Blocks of machines of the other byte order.
    let mut swapped = b.to_vec();
    let _ = zio::swap::block(disk::ObjType::DNODE, 0, &mut swapped);
    let _ = black_box(DnodePhys::decode(&swapped));
}

fn objset(b: &[u8]) {
    if let Ok(o) = disk::objset::ObjsetPhys::decode(b) {
        one_dnode(&o.meta);
        o.special.iter().flatten().for_each(one_dnode);
        zil_header(&o.zil_header);
    }
    let mut swapped = b.to_vec();
    let _ = zio::swap::block(disk::ObjType::OBJSET, 0, &mut swapped);
}

/// The first byte is log2 of the block size (odd ones: one block); then the blocks.
fn zap_any(b: &[u8]) {
    let Some((shift, rest)) = b.split_first() else {
        return;
    };
    let size = match shift {
        9..=17 => 1usize << shift,
        _ => rest.len().next_multiple_of(512).max(512),
    };
    let blocks: Vec<(u64, Vec<u8>)> = rest
        .chunks(size)
        .enumerate()
        .map(|(i, c)| {
            let mut c = c.to_vec();
            c.resize(size, 0);
            (i as u64, c)
        })
        .collect();
    let count = blocks.len();
    let store = MemStore::from_blocks(size, blocks);
    let zap = Zap::new(&store).longname(true);
    let _ = black_box(zap.count());
    let _ = black_box(zap.stats());
    let mut names = Vec::new();
    // A pointer table may lead to one leaf many times; its entries show once all the same.
    for e in zap.iter().take(count * 2000 + 2000) {
        match e {
            Ok(e) => names.push(e),
            Err(_) => break,
        }
    }
    for e in names.iter().take(8) {
        let _ = black_box(zap.get(&e.name));
        let _ = black_box(zap.find(&e.name[..], zap::Match::Normalized));
        let _ = black_box(zap.cursor(e.cookie).next());
    }
    let _ = black_box(zap.get("ROOT"));
    // Damaged ones may also be written to.
    let _ = zap.add_u64(&(), "a new name", 7);
    if let Some(e) = names.first() {
        let _ = zap.remove(&(), &e.name);
    }
    let mut swapped = rest.to_vec();
    let _ = zio::swap::block(disk::ObjType::OBJECT_DIRECTORY, 0, &mut swapped);
}

fn tables() -> &'static (Registry, Layouts) {
    static TABLES: OnceLock<(Registry, Layouts)> = OnceLock::new();
    TABLES.get_or_init(|| {
        let registry = Registry::load([]).unwrap_or_else(|e| panic!("{e}"));
        let layouts = [
            (2, vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]),
            (3, vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]),
            (4, vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 17]),
            (5, vec![17]),
            (6, vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 10, 16, 19]),
            (
                7,
                vec![5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19, 20],
            ),
            (8, vec![20]),
        ];
        let layouts = Layouts::load(layouts).unwrap_or_else(|e| panic!("{e}"));
        (registry, layouts)
    })
}

fn system_attributes(b: &[u8]) {
    let (registry, layouts) = tables();
    // The second half as if it were a spill block.
    let (bonus, spill) = b.split_at(b.len() / 2);
    for (one, two) in [(b, None), (bonus, Some(spill))] {
        if let Ok(a) = sa::parse(one, two, registry, layouts) {
            let n = registry.zpl();
            let _ = black_box((a.get_u64(n.mode), a.get_u64_pair(n.mtime)));
            if let Some(x) = a.get(n.dxattr) {
                let _ = black_box(disk::xattr::SaXattrs::unpack(x));
            }
            if let Some(x) = a.get(n.dacl_aces) {
                let _ = black_box(disk::acl::decode_v1(x));
            }
        }
    }
    let mut swapped = b.to_vec();
    let _ = black_box(sa::to_little_endian(&mut swapped, registry, layouts));
    // Tables made of what the disk says.
    let words: Vec<u64> = b
        .chunks_exact(8)
        .take(32)
        .map(|w| disk::bytes::u64_at(w, 0).unwrap_or(0))
        .collect();
    let names = words.iter().enumerate().map(|(i, w)| (format!("A{i}"), *w));
    if let Ok(r) = Registry::load(names) {
        let lists = words.chunks(4).enumerate();
        let lists = lists.map(|(i, w)| (i as u16, w.iter().map(|w| *w as u16 % 40).collect()));
        if let Ok(l) = Layouts::load(lists) {
            let _ = black_box(sa::parse(b, None, &r, &l));
        }
    }
}

fn znode(b: &[u8]) {
    if let Ok(z) = disk::znode::ZnodePhys::decode(b) {
        let _ = black_box(z.acl.aces(None));
        let _ = black_box(z.acl.aces(Some(b)));
        black_box(z.encode());
    }
    disk::znode::swap(&mut b.to_vec());
}

fn xattr(b: &[u8]) {
    if let Ok(x) = disk::xattr::SaXattrs::unpack(b) {
        let again = disk::xattr::SaXattrs::unpack(&x.pack());
        assert!(
            again.is_ok(),
            "attributes that were read cannot be read again"
        );
    }
    let _ = black_box(disk::xattr::PosixAcl::decode(b));
}

fn acl(b: &[u8]) {
    for aces in [disk::acl::decode_v1(b), disk::acl::decode_v0(b)]
        .into_iter()
        .flatten()
    {
        black_box((
            disk::acl::mode_of(&aces, 1, 2),
            disk::acl::is_trivial(&aces),
        ));
        black_box(disk::acl::encode_v1(&aces));
    }
    disk::acl::swap_v1(&mut b.to_vec());
    disk::acl::swap_v0(&mut b.to_vec());
}

fn fuid(b: &[u8]) {
    if let Ok(f) = disk::fuid::FuidTable::unpack(b) {
        black_box((f.domain(0), f.domain(1), f.domain(u32::MAX)));
    }
}

fn dsl_bonus(b: &[u8]) {
    use disk::dsl::*;
    if let Ok(d) = DslDirPhys::decode(b) {
        black_box((d.used(Used::Head), d.encode()));
    }
    if let Ok(d) = DslDatasetPhys::decode(b) {
        pointer(&d.bp);
        black_box(d.encode());
    }
    if let Ok(p) = BpobjPhys::decode(b) {
        black_box((p.has_comp(), p.has_freed(), p.encode()));
    }
    let _ = black_box(DeadlistPhys::decode(b));
    let _ = black_box(BptreePhys::decode(b));
    let _ = black_box(BptreeEntry::decode(b));
    let _ = black_box(RedactBlock::decode(b));
    let words = disk::bytes::u64s(b);
    let _ = black_box(BookmarkPhys::from_words(&words));
    let _ = black_box(disk::brt::BrtPhys::decode(b));
    let _ = black_box(disk::ddt::DdtLogPhys::decode(b));
    let _ = black_box(disk::spacemap::SpaceMapPhys::decode(b));
    if let Ok(h) = disk::history::HistoryPhys::decode(b) {
        black_box((
            h.physical(h.eof),
            h.pieces(h.bof, 4096),
            h.must_drop(1 << 20),
        ));
    }
}

fn spacemap(b: &[u8]) {
    for e in disk::spacemap::entries(b) {
        let Ok(disk::spacemap::Entry::Range(r)) = e else {
            continue;
        };
        let _ = black_box((r.bytes(9), r.bytes(12), r.bytes(63), r.bytes(64)));
    }
    let end = 64 << 20;
    if let Ok(free) = space::replay(0, end, space::replay::map_ops(b, 9, 0)) {
        black_box(free.total());
    }
    let _ = black_box(space::replay(
        1 << 24,
        end,
        space::replay::map_ops(b, 12, 1 << 24),
    ));
    let mut log = space::Unflushed::default();
    for op in space::replay::log_ops(b) {
        match op {
            Ok((_, op)) => {
                if log.add(op).is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    black_box(log.net());
}

fn zil_header(b: &[u8]) {
    if let Ok(h) = disk::zil::ZilHeader::decode(b) {
        pointer(&h.log);
        black_box(h.encode());
    }
}

fn zil_block(b: &[u8]) {
    zil_header(b);
    for slim in [false, true] {
        if let Ok(c) = disk::zil::ZilChain::decode(b, slim) {
            pointer(&c.next);
            if let Some(area) = b.get(c.records(slim)) {
                for r in disk::zil::records(area) {
                    black_box(&r);
                }
            }
        }
    }
    // As the walk of a chain does, from the block its header names.
    let log = OneBlock(b);
    let mut bp = BlkPtr::new(
        disk::ObjType::INTENT_LOG,
        0,
        4096,
        4096,
        Compression::OFF,
        Checksum::ZILOG2,
        Txg::new(7),
    );
    let size = b.len() / 512 * 512;
    if size >= 512 {
        bp = BlkPtr::new(
            disk::ObjType::INTENT_LOG,
            0,
            size,
            size,
            Compression::OFF,
            Checksum::ZILOG2,
            Txg::new(7),
        );
    }
    bp.set_dva(0, disk::Dva::new(0, 512, 4096, false));
    bp.set_checksum([1, 2, 3, 1]);
    let limits = (u64::MAX, u64::MAX);
    let _ = zil::walk(&log, &bp, limits, &mut |_| Ok(true), &mut |r| {
        let _ = black_box((r.decode(), r.write_bp(), r.clone_bps(), r.object()));
        Ok(true)
    });
}

/// A device that has the same block everywhere, whatever its checksum.
struct OneBlock<'a>(&'a [u8]);

impl zil::LogBlocks for OneBlock<'_> {
    fn read_block(&self, _: &BlkPtr, _: &(dyn Fn(&[u8]) -> bool + Sync)) -> base::Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }
    fn read_data(&self, bp: &BlkPtr) -> base::Result<Block> {
        Ok(Arc::new(vec![0; bp.lsize()]))
    }
    fn claim(&self, _: &BlkPtr, _: base::Txg) -> base::Result<()> {
        Ok(())
    }
    fn free(&self, _: &BlkPtr, _: base::Txg) -> base::Result<()> {
        Ok(())
    }
}

fn zil_record(b: &[u8]) {
    if let Ok((r, len)) = disk::zil::Record::decode(b) {
        assert!(len <= b.len());
        black_box((r.body.type_name(), r.body.out_of_order_object(), r.encode()));
    }
    let mut swapped = b.to_vec();
    if disk::zil::record_to_little_endian(&mut swapped).is_ok() {
        let _ = black_box(disk::zil::Record::decode(&swapped));
    }
    for r in disk::zil::records(b) {
        black_box(&r);
    }
}

fn ddt(b: &[u8]) {
    use disk::ddt::*;
    for (flat, swap) in [(false, false), (false, true), (true, false), (true, true)] {
        let Ok(e) = DdtEntry::decode(b, flat, swap) else {
            continue;
        };
        let key = DdtKey([1, 2, 3, 4, disk::bytes::u64_at(b, 0).unwrap_or(0)]);
        let figures = e.figures(&key, |d| d.asize());
        let mut h = DdtHistogram::default();
        h.count(&figures, true);
        black_box((e.references(), h.total(), e.encode()));
        for s in e.slots() {
            pointer(&key.pointer(Checksum::SHA256, s));
        }
    }
    let _ = black_box(DdtLogRecord::decode_block(b));
    let _ = black_box(DdtLogPhys::decode(b));
    let _ = black_box(DdtKey::from_words(&disk::bytes::u64s(b)));
    let _ = black_box(disk::brt::BrtPhys::decode(b));
    // As a table stores it: a byte that says how, then the entry.
    if let Some((how, body)) = b.split_first() {
        for (flat, len) in [(false, TRADITIONAL_SIZE), (true, FLAT_SIZE)] {
            if let Ok(unpacked) = compress::decompress(Compression::new(how & 0x7f), body, len) {
                let _ = black_box(DdtEntry::decode(&unpacked, flat, how & 0x80 == 0));
            }
        }
    }
}

fn history(b: &[u8]) {
    let mut at = 0;
    while let Ok(Some((list, len))) = disk::history::unpack_record(b.get(at..).unwrap_or_default())
    {
        black_box(list.dump(0));
        assert!(len > 0, "a record without length");
        at += len;
    }
}

fn indirect(b: &[u8]) {
    let (mapping, births) = b.split_at(b.len() * 3 / 4);
    let mut map = vdev::IndirectMap::default();
    let parts = (mapping.chunks(24 * 7)).all(|c| map.add_ranges(c).is_ok());
    if parts && map.add_births(births).is_ok() {
        for m in map.ranges().iter().take(8) {
            let _ = black_box(map.resolve(m.src, 4096));
            let _ = black_box(map.resolve(m.src, m.size.min(16 << 20) as usize));
        }
        let _ = black_box(map.resolve(u64::MAX - 100, 4096));
    }
}

fn partition(b: &[u8]) {
    let size = 1u64 << 30;
    let read = |at: u64, len: usize| -> base::Result<Vec<u8>> {
        let mut out = vec![0; len];
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(have) = b.get(at..) {
            let n = have.len().min(len);
            out[..n].copy_from_slice(&have[..n]);
        }
        Ok(out)
    };
    for p in env::partition::table(size, &read) {
        assert!(p.start + p.len <= size, "a partition beyond the disk");
    }
}

/// Four bytes of size in front, at most that of the largest block.
fn unpack(alg: Compression, b: &[u8]) {
    let Some((size, data)) = b.split_first_chunk::<4>() else {
        return;
    };
    let lsize = u32::from_le_bytes(*size) as usize % (base::MAX_BLOCK + 1);
    // Large ones seldom: they say nothing new and take long.
    let lsize = match lsize % 64 {
        0 => lsize,
        1..8 => lsize % (256 << 10),
        _ => lsize % (16 << 10),
    };
    if let Ok(out) = compress::decompress(alg, data, lsize) {
        assert_eq!(out.len(), lsize, "decompressed to another size");
    }
}

fn messages(b: &[u8]) {
    let _ = black_box(control::wire::decode_call(b));
    let _ = black_box(control::wire::decode_reply(b));
}

/// A file system that has nothing.
struct Nothing;
impl fuse::Filesystem for Nothing {}

fn fuse_request(b: &[u8]) {
    static SINK: OnceLock<Option<File>> = OnceLock::new();
    let sink = SINK.get_or_init(|| File::options().write(true).open("/dev/null").ok());
    if let Some(sink) = sink {
        let _ = fuse::testing::request(&Nothing, sink, b);
    }
}
