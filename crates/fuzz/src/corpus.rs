//! Good inputs: what OpenZFS wrote into the fixtures, sorted by what decodes it, and what our own
//! encoders give where there are no fixtures.

use crate::Target;
use api::Request;
use base::{Result, Txg};
use disk::label::{label_offset, LABELS, NVLIST_OFFSET, NVLIST_SIZE, RING_OFFSET};
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, Checksum, Compression, DnodePhys, NvList, ObjType};
use env::Access;
use pool::{OpenOptions, Pool};
use std::collections::BTreeMap;
use testkit::fixture;

/// Inputs kept of one kind.
const MOST: usize = 160;
/// Longest input kept.
const LONGEST: usize = 64 << 10;

/// Inputs by kind.
#[derive(Default)]
pub struct Corpus {
    kinds: BTreeMap<&'static str, Vec<Vec<u8>>>,
}

/// Fixtures with much in them; `quick`: only a few.
fn fixtures(quick: bool) -> &'static [&'static str] {
    match quick {
        true => &["zil", "dedup-fast", "legacy-v6"],
        false => &[
            "single",
            "zil",
            "zil-raidz",
            "dedup-fast",
            "dedup-legacy",
            "blockclone",
            "gang",
            "snapshots",
            "checksums",
            "compression",
            "acl",
            "xattrs",
            "removal",
            "legacy-v6",
            "legacy-v28",
            "gpt-disk",
            "draid",
        ],
    }
}

/// Servers of network block devices: greeting, replies to GO, replies to requests.
fn nbd_servers(c: &mut Corpus) {
    let reply = |kind: u32, data: &[u8]| {
        let len = (data.len() as u32).to_be_bytes();
        let head = 0x0003_e889_0455_65a9u64.to_be_bytes();
        [
            &head,
            &7u32.to_be_bytes()[..],
            &kind.to_be_bytes(),
            &len,
            data,
        ]
        .concat()
    };
    let export = [&[0, 0], &(1u64 << 20).to_be_bytes()[..], &[1, 0x2d]].concat();
    let blocks = [
        &[0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0][..],
        &(1u32 << 20).to_be_bytes(),
    ]
    .concat();
    let mut b = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    for part in [reply(3, &export), reply(3, &blocks), reply(1, b"")] {
        b.extend(part);
    }
    for cookie in 0..4u64 {
        b.extend(0x6744_6698u32.to_be_bytes());
        b.extend(0u32.to_be_bytes());
        b.extend(cookie.to_be_bytes());
        b.extend(vec![5; if cookie == 0 { 512 } else { 0 }]);
    }
    c.add("nbd-server", &b);
    let refusal = reply((1 << 31) + 6, b"no such export");
    c.add(
        "nbd-server",
        &[b"NBDMAGICIHAVEOPT\0\x03", &refusal[..]].concat(),
    );
    c.add(
        "nbd-server",
        b"nbd+unix:///tank/vol?socket=/run/zfs-fuse/nbd.sock",
    );
}

impl Corpus {
    /// Only what our own encoders give.
    pub fn own() -> Corpus {
        let mut c = Corpus::default();
        let mut list = NvList::new();
        list.set("name", "tank");
        list.set("guid", 7u64);
        c.add("nvlist", &list.pack_xdr());
        c.add("nvlist", &list.pack_native());
        for &alg in Compression::ALL {
            if let Some(packed) = codec::compress::compress(alg, 0, &b"abcd".repeat(512), 4096) {
                c.packed(alg, 2048, &packed);
            }
        }
        let ub = disk::Uberblock {
            version: 5000,
            txg: Txg::new(4),
            ..disk::Uberblock::default()
        };
        c.add("uberblock", &ub.encode(1024));
        c.own_streams();
        let text = || "tank".to_string();
        let requests = [
            Request::Ping {},
            Request::PoolDestroy {
                pool: text(),
                force: true,
                command: text(),
            },
            Request::PoolUpgrade {
                pool: text(),
                version: Some(28),
                command: text(),
            },
            Request::PoolSync {
                pool: text(),
                force: false,
            },
        ];
        for r in &requests {
            if let Ok(b) = control::wire::encode_call(r, true) {
                c.add("messages", &b);
            }
        }
        let error = api::ApiError::sentence(base::Kind::Invalid, "no");
        if let Ok(b) = control::wire::encode_error(&error) {
            c.add("messages", &b);
        }
        // Clients of the NBD server: flags, options, requests.
        let option = |number: u32, data: &[u8]| {
            let len = (data.len() as u32).to_be_bytes();
            [b"IHAVEOPT", &number.to_be_bytes()[..], &len, data].concat()
        };
        let query = b"\0\0\0\x01v\0\0\0\x01\0\0\0\x0fbase:allocation";
        let wish = b"\0\0\0\x01v\0\x01\0\x03";
        for command in 0..8u16 {
            let mut b = [0, 0, 0, 3].to_vec();
            b.extend(option(3, b""));
            b.extend(option(8, b""));
            b.extend(option(10, query));
            b.extend(option(7, wish));
            for flags in [0u16, 1, 4, 8] {
                b.extend(0x2560_9513u32.to_be_bytes());
                b.extend(flags.to_be_bytes());
                b.extend(command.to_be_bytes());
                b.extend([7; 8]);
                b.extend(4096u64.to_be_bytes());
                b.extend(100u32.to_be_bytes());
                if command == 1 {
                    b.extend([9; 100]);
                }
            }
            c.add("nbd", &b);
        }
        c.add("nbd", &[&[0, 0, 0, 3], &option(1, b"v")[..]].concat());
        nbd_servers(&mut c);
        for b in crate::nfs_calls::good() {
            c.add("nfs", &b);
        }
        // Requests of the kernel: a header, then room for arguments and a name.
        for op in 1..=53u32 {
            let mut b = vec![0; 168];
            b[0..4].copy_from_slice(&168u32.to_le_bytes());
            b[4..8].copy_from_slice(&op.to_le_bytes());
            b[8] = 7;
            b[16] = 1;
            b[40..48].copy_from_slice(b"name\0to\0");
            b[104..112].copy_from_slice(b"name\0to\0");
            c.add("fuse", &b);
        }
        c
    }

    fn own_streams(&mut self) {
        let token = stream::ResumeToken {
            object: 7,
            to_name: "tank/home@now".into(),
            embedded: true,
            redact_snaps: Some(vec![1, 2]),
            ..stream::ResumeToken::default()
        };
        self.add("token", token.encode().as_bytes());
        self.add("stream-list", &token.to_list().pack_native());
        let mut writer = stream::Writer::new(Vec::new());
        let begin = disk::stream::Begin {
            to_name: b"tank/home@now".to_vec(),
            ..disk::stream::Begin::default()
        };
        let free = disk::stream::Free {
            object: 1,
            length: u64::MAX,
            ..disk::stream::Free::default()
        };
        // Writing to memory does not fail.
        let _ = writer.begin_package(&begin, &NvList::new());
        let _ = writer.begin(&begin, &token.to_list());
        let _ = writer.write(&disk::stream::Record::Free(free), &[]);
        let _ = writer.end(0);
        let _ = writer.end_package();
        let _ = writer.flush();
        self.stream(&writer.into_inner());
    }

    /// With what the fixtures hold, if there are any here.
    pub fn with_fixtures(quick: bool) -> Corpus {
        let mut c = Corpus::own();
        for name in fixtures(quick) {
            if let Err(e) = c.fixture(name) {
                eprintln!("corpus: {name}: {e}");
            }
        }
        if let Err(e) = c.streams() {
            eprintln!("corpus: streams: {e}");
        }
        c
    }

    /// The inputs for a target.
    pub fn of(&self, t: &Target) -> Vec<Vec<u8>> {
        self.kinds.get(t.corpus).cloned().unwrap_or_default()
    }

    fn add(&mut self, kind: &'static str, b: &[u8]) {
        let list = self.kinds.entry(kind).or_default();
        if list.len() < MOST && b.len() <= LONGEST && !b.is_empty() {
            list.push(b.to_vec());
        }
    }

    /// A compressed block, with its size in front as the targets want it.
    fn packed(&mut self, alg: Compression, lsize: usize, data: &[u8]) {
        let kind = match alg {
            Compression::LZJB => "lzjb",
            a if a.gzip_level().is_some() => "gzip",
            Compression::ZLE => "zle",
            Compression::LZ4 => "lz4",
            Compression::ZSTD => "zstd",
            _ => return,
        };
        let mut b = (lsize as u32).to_le_bytes().to_vec();
        b.extend_from_slice(data);
        self.add(kind, &b);
    }

    fn streams(&mut self) -> Result<()> {
        for name in ["streams-old", "streams-more"] {
            let Ok((_dir, files)) = fixture::streams(name) else {
                continue;
            };
            for f in files {
                self.stream(&std::fs::read(f)?);
            }
        }
        Ok(())
    }

    /// A stream, its lists and its records: of each type some.
    fn stream(&mut self, b: &[u8]) {
        self.add("stream", &b[..b.len().min(LONGEST)]);
        let mut reader = stream::Reader::new(b);
        let mut of_type = [0; 11];
        while let Ok(Some(item)) = reader.next() {
            if let disk::stream::Record::Begin(_) = item.record {
                self.add("nvlist", &item.payload);
                self.add("stream-list", &item.payload);
            }
            let n = &mut of_type[item.record.number() as usize % 11];
            *n += 1;
            if *n < 3 {
                self.add("stream-record", &item.header);
            }
        }
    }

    fn fixture(&mut self, name: &str) -> Result<()> {
        let dir = fixture::unpack(name)?;
        let env = env_linux::linux_env();
        let mut paths = Vec::new();
        for e in std::fs::read_dir(dir.path())?.flatten() {
            paths.push(e.path().to_string_lossy().into_owned());
        }
        paths.sort();
        for p in &paths {
            let disk = env.disks.open(p, Access::Read)?;
            let size = disk.geometry().size;
            let mut head = vec![0; 40 << 10];
            disk.read(0, &mut head)?;
            self.add("partition", &head);
            for i in 0..LABELS {
                let Some(at) = label_offset(i, size) else {
                    continue;
                };
                let mut area = vec![0; NVLIST_SIZE];
                disk.read(at + NVLIST_OFFSET, &mut area)?;
                // The packed configuration and some of the room behind it.
                let end = area.iter().rposition(|b| *b != 0).map_or(0, |n| n + 1);
                let used = area[..end.saturating_sub(40)].iter().rposition(|b| *b != 0);
                let used = used.map_or(0, |n| n + 64).min(area.len());
                self.add("nvlist", &area[..used]);
                for slot in [4u64, 5, 6, 7] {
                    let mut ub = vec![0; 1024];
                    disk.read(at + RING_OFFSET + slot * 1024, &mut ub)?;
                    self.add("uberblock", &ub);
                }
            }
        }
        let found = vdev::discover(&env, &paths);
        for p in found.pools {
            let options = OpenOptions {
                readonly: true,
                missing_log: true,
                ..OpenOptions::default()
            };
            let pool = Pool::open(env.clone(), &p.config, options)?;
            self.pool(&pool);
            let _ = pool.close();
        }
        Ok(())
    }

    fn pool(&mut self, pool: &Pool) {
        let mut roots = vec![pool.mos().root()];
        let mut at = 0;
        while let Ok(Some(o)) = pool.mos().next_object(at) {
            at = o;
            let Ok(dn) = pool.mos().hold(o) else { continue };
            if dn.info().bonus_type == ObjType::DSL_DATASET {
                if let Ok(p) = disk::dsl::DslDatasetPhys::decode(&dn.bonus()) {
                    roots.push(p.bp);
                }
            }
        }
        for root in roots.into_iter().take(12) {
            let Ok(b) = pool.zio().read(&root) else {
                continue;
            };
            self.add("objset", &b);
            let Ok(phys) = ObjsetPhys::decode(&b) else {
                continue;
            };
            self.log(pool, &phys);
            let mut objects = vec![phys.meta.clone()];
            objects.extend(phys.special.iter().flatten().cloned());
            for bp in blocks(pool, &phys.meta, usize::MAX) {
                if bp.level() > 0 {
                    continue;
                }
                let Ok(b) = pool.zio().read(&bp) else {
                    continue;
                };
                self.add("dnode", &b);
                let mut slot = 0;
                while (slot + 1) * 512 <= b.len() {
                    match DnodePhys::decode(&b[slot * 512..]) {
                        Ok(Some(dn)) => {
                            slot += usize::from(dn.slots).max(1);
                            if objects.len() < 4000 {
                                objects.push(dn);
                            }
                        }
                        _ => slot += 1,
                    }
                }
            }
            for dn in &objects {
                self.object(pool, dn);
            }
        }
    }

    fn object(&mut self, pool: &Pool, dn: &DnodePhys) {
        match dn.bonus_type {
            ObjType::SA => self.add("sa", &dn.bonus),
            ObjType::ZNODE => self.add("znode", &dn.bonus),
            ObjType::NONE => {}
            _ => self.add("bonus", &dn.bonus),
        }
        if let Some(bp) = &dn.spill {
            if let Ok(b) = pool.zio().read(bp) {
                self.add("sa", &b);
            }
        }
        let mut whole = Vec::new();
        for bp in &blocks(pool, dn, 12) {
            self.add("blkptr", &bp.to_bytes());
            if bp.is_gang() {
                self.gang(pool, bp);
            }
            let raw = match bp.is_embedded() {
                true => Ok(bp.embedded_payload()),
                false => pool.zio().read_raw(bp),
            };
            if let Ok(raw) = raw {
                self.packed(bp.compress(), bp.lsize(), &raw);
            }
            let Ok(b) = pool.zio().read(bp) else { continue };
            if bp.level() > 0 {
                self.add("blkptr", &b[..b.len().min(1024)]);
                continue;
            }
            match bp.obj_type() {
                t if t.is_zap() => whole.extend_from_slice(&b),
                ObjType::SPACE_MAP => {
                    let end = b.iter().rposition(|b| *b != 0).map_or(0, |n| n / 8 * 8 + 8);
                    self.add("spacemap", &b[..end]);
                }
                ObjType::SPA_HISTORY => self.add("history", &b[..b.len().min(LONGEST)]),
                ObjType::PACKED_NVLIST => {
                    let end = b.iter().rposition(|b| *b != 0).map_or(0, |n| n + 4);
                    self.add("nvlist", &b[..end.min(b.len())]);
                }
                ObjType::BPOBJ => self.add("blkptr", &b[..b.len().min(1024)]),
                ObjType::U64_METADATA => self.add("words", &b[..b.len().min(4096)]),
                ObjType::FUID => self.add("fuid", &b[..b.len().min(4096)]),
                _ => {}
            }
        }
        if !whole.is_empty() {
            // The block size (log2) in front.
            let mut z = vec![dn.block_size().trailing_zeros() as u8];
            if !dn.block_size().is_power_of_two() {
                z[0] = 0;
            }
            z.extend_from_slice(&whole);
            self.add("zap", &z);
            for e in whole.chunks(64).take(1) {
                let _ = e;
            }
        }
    }

    fn gang(&mut self, pool: &Pool, bp: &BlkPtr) {
        if let Ok(children) = pool.zio().gang_header(bp, 0) {
            let mut b: Vec<u8> = children.iter().flat_map(|c| c.to_bytes()).collect();
            b.resize(512, 0);
            self.add("gang", &b);
        }
    }

    /// The blocks of a log, whole.
    fn log(&mut self, pool: &Pool, phys: &ObjsetPhys) {
        self.add("zil-header", &phys.zil_header);
        let Ok(h) = disk::zil::ZilHeader::decode(&phys.zil_header) else {
            return;
        };
        let mut bp = h.log;
        for _ in 0..64 {
            if bp.is_hole() || bp.sanity(pool.zio().devices.vdevs()).is_err() {
                return;
            }
            let read = pool
                .zio()
                .devices
                .probe(&bp.dva(0), bp.psize(), Txg::MAX, &|_| true);
            let Ok(b) = read else { return };
            let slim = bp.checksum_alg() == Checksum::ZILOG2;
            let Ok(chain) = disk::zil::ZilChain::decode(&b, slim) else {
                return;
            };
            if let Some(area) = b.get(chain.records(slim)) {
                self.add("zil-records", &area[..area.len().min(LONGEST)]);
                for r in disk::zil::records(area).flatten().take(40) {
                    self.add("zil-record", &r.encode());
                }
            }
            self.add("zil-block", &b[..b.len().min(LONGEST)]);
            bp = chain.next;
        }
    }
}

/// The first blocks of an object, parents first; damage ends the list.
fn blocks(pool: &Pool, dn: &DnodePhys, most: usize) -> Vec<BlkPtr> {
    let mut out = Vec::new();
    let spec = walk::Spec::all(walk::Order::ParentsFirst);
    let _ = walk::blocks(
        pool.zio(),
        dn,
        &spec,
        &mut |_, bp| {
            if out.len() >= most {
                return Ok(walk::Next::Stop);
            }
            out.push(*bp);
            Ok(walk::Next::Descend)
        },
        &mut |f| Err(f.problem.error().clone()),
    );
    out
}
