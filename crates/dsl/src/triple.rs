//! [`Triple`]: the three sizes of blocks that are accounted.

use base::Txg;
use disk::BlkPtr;
use dmu::Dmu;

/// Space of a block or of many: allocated (deflated), compressed, uncompressed bytes (data format §1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Triple {
    /// Allocated bytes, deflated; what `used` and quotas count.
    pub used: i64,
    /// Compressed bytes: PSIZE.
    pub comp: i64,
    /// Uncompressed bytes: LSIZE of content, PSIZE of metadata.
    pub uncomp: i64,
}

impl Triple {
    /// Space of a block. Holes and redacted blocks count nothing.
    pub(crate) fn of(dmu: &Dmu, bp: &BlkPtr) -> Triple {
        if bp.is_hole() || bp.is_redacted() {
            return Triple::default();
        }
        Triple {
            used: dmu.zio.dsize(bp) as i64,
            comp: bp.acct_psize() as i64,
            uncomp: bp.ucsize() as i64,
        }
    }
}

impl std::ops::AddAssign for Triple {
    fn add_assign(&mut self, o: Triple) {
        self.used += o.used;
        self.comp += o.comp;
        self.uncomp += o.uncomp;
    }
}

impl std::ops::SubAssign for Triple {
    fn sub_assign(&mut self, o: Triple) {
        *self += -o;
    }
}

impl std::ops::Neg for Triple {
    type Output = Triple;
    fn neg(self) -> Triple {
        Triple {
            used: -self.used,
            comp: -self.comp,
            uncomp: -self.uncomp,
        }
    }
}

impl std::ops::Add for Triple {
    type Output = Triple;
    fn add(mut self, o: Triple) -> Triple {
        self += o;
        self
    }
}

impl std::ops::Sub for Triple {
    type Output = Triple;
    fn sub(self, o: Triple) -> Triple {
        self + -o
    }
}

/// Changes a counter on disk; damage must not wrap it.
pub(crate) fn bump(x: &mut u64, d: i64) {
    *x = x.saturating_add_signed(d);
}

/// Whether a block was born in the half-open range of txgs.
pub(crate) fn born_in(bp: &BlkPtr, after: Txg, upto: Txg) -> bool {
    bp.birth() > after && bp.birth() <= upto
}
