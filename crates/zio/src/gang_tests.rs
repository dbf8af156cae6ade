//! Gangs of blocks of encrypted datasets: their headers have a checksum of their own kind.

use crate::memory::{MemoryAllocator, MemoryDevices};
use crate::{Allocator, Devices, Prepared, Purpose, Seal, WriteSpec, Zio, ZioOptions};
use base::Txg;
use codec::checksum;
use codec::crypt::{DatasetKey, Suite};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use std::sync::Arc;

const SIZE: usize = 512;
/// Where the words of the checksum are.
const WORDS: std::ops::Range<usize> = 480..512;

fn zio(size: u64) -> (Zio, Arc<MemoryDevices>, Arc<MemoryAllocator>) {
    let a = Arc::new(MemoryAllocator::new(size));
    let d = Arc::new(MemoryDevices::new(9));
    let o = ZioOptions {
        cache_bytes: 1 << 20,
        seed: 1,
        writable: true,
    };
    (Zio::new(d.clone(), a.clone(), o), d, a)
}

/// A header that OpenZFS 2.3.2 wrote on a RAID-Z, and the block it belongs to: 256 KiB of an object
/// of an encrypted dataset, authenticated only.
fn theirs() -> (Vec<u8>, BlkPtr) {
    let mut words = [0u64; SIZE / 8];
    let child = |offset, prop, sum: [u64; 4]| {
        let mut w = [0; 16];
        (w[0], w[1], w[6], w[10]) = (0xe4, offset, prop, 74);
        w[12..].copy_from_slice(&sum);
        w
    };
    let of = [
        child(
            0x25010,
            0x8000_0802_00aa_00aa,
            [
                0x98b4dbe5e7bc662b,
                0x0f231bcf423936ed,
                0x28193083eff12a3f,
                0x4a116240e4afa57c,
            ],
        ),
        child(
            0x250f4,
            0x8000_0802_00aa_00aa,
            [
                0x10d2f82514fa7930,
                0x1a7b2a01e5052f54,
                0x31ec75ff2e2b990d,
                0x05ed8cf69b26a54d,
            ],
        ),
        child(
            0x251d8,
            0x8000_0802_00a9_00a9,
            [
                0x2fdc32efb728a967,
                0x2338a93cdac60ac0,
                0x05f284fd27255eae,
                0xa035f4c9c555b730,
            ],
        ),
    ];
    for (to, from) in words.chunks_exact_mut(16).zip(of) {
        to.copy_from_slice(&from);
    }
    words[59..62].copy_from_slice(&[0x0210da7ab10c7a11, 0xe1047f4e1e8a1fec, 0xd671f775475738ea]);
    let bytes = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut bp = BlkPtr::new(
        ObjType(26),
        0,
        0x40000,
        0x40000,
        Compression::OFF,
        Checksum::SHA256,
        Txg::new(74),
    );
    bp.set_dva(0, Dva::new(0, 0x492d800, 0x55c00, true));
    bp.set_crypt();
    (bytes, bp)
}

#[test]
fn a_header_from_openzfs() {
    let (z, d, _) = zio(8 << 20);
    let (header, bp) = theirs();
    d.mend(&bp.dva(0), Txg::new(74), &header).unwrap();
    let children = z.gang_header(&bp, 0).unwrap();
    let sizes: Vec<_> = children.iter().map(|c| c.psize()).collect();
    assert_eq!(sizes, [0x15600, 0x15600, 0x15400]);
    // What no key was used for has the whole checksum in its header: so have object sets.
    let mut plain = BlkPtr::new(
        ObjType(26),
        0,
        0x40000,
        0x40000,
        Compression::OFF,
        Checksum::SHA256,
        Txg::new(74),
    );
    plain.set_dva(0, bp.dva(0));
    assert!(z.gang_header(&plain, 0).is_err());
    let mut set = BlkPtr::new(
        ObjType::OBJSET,
        0,
        0x40000,
        0x40000,
        Compression::OFF,
        Checksum::SHA256,
        Txg::new(74),
    );
    set.set_dva(0, bp.dva(0));
    set.set_crypt();
    assert!(z.gang_header(&set, 0).is_err());
    // A wrong bit is found.
    let mut bad = header.clone();
    bad[0x60] ^= 1;
    d.mend(&bp.dva(0), Txg::new(74), &bad).unwrap();
    assert!(z.gang_header(&bp, 0).is_err());
}

#[test]
fn headers_as_openzfs_wants_them() {
    let (z, d, a) = zio(1 << 20);
    // No piece of free space larger than 4 KiB.
    let mut hold = Vec::new();
    while let Ok(dvas) = a.alloc(Purpose::Data, 4096, 1, Txg::new(5), &|_| 4096) {
        hold.push(dvas[0]);
    }
    for dva in hold.iter().step_by(2) {
        a.free(0, dva.offset(), dva.asize(), Txg::new(5)).unwrap();
    }
    let before = a.free_bytes();
    let key = DatasetKey::generate(Suite::DEFAULT, &|b| b.fill(7));
    let seal = Seal {
        key: Some(&key),
        random: &|b| b.fill(9),
        raw: None,
    };
    for (kind, folded) in [
        (ObjType::PLAIN_FILE_CONTENTS, true),
        (ObjType(26), true),
        (ObjType::OBJSET, false),
    ] {
        let spec = WriteSpec {
            obj_type: kind,
            level: 0,
            compress: Compression::OFF,
            zstd_level: 0,
            checksum: Checksum::FLETCHER4,
            copies: 1,
            gang_copies: 2,
            embed: false,
            hole_birth: true,
            dedup: false,
            verify: false,
            small: 0,
        };
        let sealed = |fill: u8| -> Prepared {
            let data = Arc::new(vec![fill; 8192]);
            z.prepare_with(&spec, &data, Some(&seal)).unwrap()
        };
        let mut bp = BlkPtr::HOLE;
        // Then anew in the same place: written already, and still queued.
        for fills in [1..2, 2..5] {
            for fill in fills {
                bp = z.issue(&spec, &sealed(fill), Txg::new(5), &bp).unwrap();
            }
            assert!(bp.is_gang() && bp.uses_crypt(), "{kind:?}");
            z.drain(Txg::new(5)).unwrap();
            let verifier = [0, bp.dva(0).offset(), 5, 0];
            for i in 0..2 {
                let mut header = d.probe(&bp.dva(i), SIZE, Txg::new(5), &|_| true).unwrap();
                let (full, _) =
                    checksum::compute_embedded(Checksum::GANG_HEADER, &header, &verifier).unwrap();
                let want = match folded {
                    true => [full[0] ^ full[2], full[1] ^ full[3], 0, 0],
                    false => full,
                };
                let want: Vec<u8> = want.iter().flat_map(|w| w.to_le_bytes()).collect();
                assert_eq!(header[WORDS], want, "{kind:?}");
                assert_eq!(z.gang_header(&bp, i).unwrap().len(), 3);
                // As this program wrote them before.
                checksum::embed(Checksum::GANG_HEADER, &mut header, &verifier).unwrap();
                d.mend(&bp.dva(i), Txg::new(5), &header).unwrap();
                assert_eq!(z.gang_header(&bp, i).unwrap().len(), 3);
            }
        }
        let places = z.places(&bp).unwrap();
        let taken = a.free_bytes();
        z.free(&bp, Txg::new(6)).unwrap();
        assert_eq!(a.free_bytes(), before);
        // What a claim of the block has to take: headers and members.
        for (vdev, offset, asize) in &places {
            a.claim(*vdev, *offset, *asize, Txg::new(6)).unwrap();
        }
        assert_eq!(a.free_bytes(), taken);
        z.free(&bp, Txg::new(7)).unwrap();
        assert_eq!(a.free_bytes(), before);
    }
}

/// The members of a gang whose header is gone cannot be found: what can be is freed, and the rest
/// counted.
#[test]
fn a_gang_with_an_unreadable_header_is_freed_but_for_its_members() {
    let (z, d, a) = zio(1 << 20);
    let mut hold = Vec::new();
    while let Ok(dvas) = a.alloc(Purpose::Data, 4096, 1, Txg::new(5), &|_| 4096) {
        hold.push(dvas[0]);
    }
    for dva in hold.iter().step_by(2) {
        a.free(0, dva.offset(), dva.asize(), Txg::new(5)).unwrap();
    }
    let before = a.free_bytes();
    let spec = WriteSpec {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        level: 0,
        compress: Compression::OFF,
        zstd_level: 0,
        checksum: Checksum::FLETCHER4,
        copies: 1,
        gang_copies: 2,
        embed: false,
        hole_birth: true,
        dedup: false,
        verify: false,
        small: 0,
    };
    let p = z.prepare(&spec, &Arc::new(vec![3; 8192])).unwrap();
    let bp = z.issue(&spec, &p, Txg::new(5), &BlkPtr::HOLE).unwrap();
    assert!(bp.is_gang());
    z.drain(Txg::new(5)).unwrap();
    let members: u64 = before - a.free_bytes() - 2 * SIZE as u64;
    // One header is enough.
    d.ruin(bp.dva(0).offset());
    z.gang_header(&bp, 1).unwrap();
    d.ruin(bp.dva(0).offset());
    for i in 0..2 {
        d.mend(&bp.dva(i), Txg::new(5), &[0x5a; SIZE]).unwrap();
    }
    // In the txg in which it was written that is no damage but a device that does not work.
    assert!(z.free(&bp, Txg::new(5)).is_err());
    z.free(&bp, Txg::new(6)).unwrap();
    assert_eq!(a.free_bytes(), before - members);
    assert_eq!(z.take_leaked(), members);
    assert_eq!(z.take_leaked(), 0);
}
