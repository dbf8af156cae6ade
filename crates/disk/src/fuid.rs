//! FUIDs (data format §23): 64-bit user and group ids with an index into a table of domains.

use crate::nvlist::NvList;
use base::{bail, Result};

const LIST: &str = "fuid_nvlist";
const IDX: &str = "fuid_idx";
const OFFSET: &str = "fuid_offset";
const DOMAIN: &str = "fuid_domain";

/// FUID of a relative id in a domain; index 0 is plain POSIX.
pub const fn fuid(index: u32, rid: u32) -> u64 {
    (index as u64) << 32 | rid as u64
}

/// Domain index of a FUID.
pub const fn index(fuid: u64) -> u32 {
    (fuid >> 32) as u32
}

/// Relative id of a FUID.
pub const fn rid(fuid: u64) -> u32 {
    fuid as u32
}

/// Table of domains of a file system: index and SID domain. Entries are never removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuidTable {
    /// Index, from 1, and the domain as the start of a security identifier (`S-1-5-…`).
    pub domains: Vec<(u64, String)>,
}

impl FuidTable {
    /// Reads the packed table (exactly the bytes the object's bonus counts).
    pub fn unpack(b: &[u8]) -> Result<FuidTable> {
        let l = NvList::unpack(b)?;
        let Some(entries) = l.get_nvlist_array(LIST) else {
            bail!(Damaged, "FUID table without entries");
        };
        let mut domains = Vec::new();
        for e in entries {
            domains.push((e.need_u64(IDX)?, e.need_str(DOMAIN)?.to_string()));
        }
        Ok(FuidTable { domains })
    }

    /// Packs the table.
    pub fn pack(&self) -> Vec<u8> {
        let entries: Vec<NvList> = self
            .domains
            .iter()
            .map(|(i, d)| {
                let mut e = NvList::new();
                e.set(IDX, *i).set(OFFSET, 0u64).set(DOMAIN, d.as_str());
                e
            })
            .collect();
        let mut l = NvList::new();
        l.set(LIST, entries);
        l.pack_xdr()
    }

    /// Domain of an index.
    pub fn domain(&self, index: u32) -> Option<&str> {
        self.domains
            .iter()
            .find(|(i, _)| *i == u64::from(index))
            .map(|(_, d)| d.as_str())
    }

    /// Index of a domain, added if it is new.
    pub fn index_of(&mut self, domain: &str) -> u32 {
        if let Some((i, _)) = self.domains.iter().find(|(_, d)| d == domain) {
            return *i as u32;
        }
        let next = self
            .domains
            .iter()
            .map(|(i, _)| *i)
            .max()
            .unwrap_or(0)
            .saturating_add(1);
        self.domains.push((next, domain.to_string()));
        next as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::junk::Junk;

    #[test]
    fn table() {
        let mut t = FuidTable::default();
        assert_eq!(t.index_of("S-1-5-21-1"), 1);
        assert_eq!(t.index_of("S-1-5-21-2"), 2);
        assert_eq!(t.index_of("S-1-5-21-1"), 1);
        let b = t.pack();
        assert_eq!(FuidTable::unpack(&b).unwrap(), t);
        assert_eq!(t.domain(2), Some("S-1-5-21-2"));
        assert_eq!(t.domain(3), None);
        let f = fuid(2, 1001);
        assert_eq!((index(f), rid(f)), (2, 1001));
        Junk(13).torment(&b, 1000, |b| {
            if let Ok(mut t) = FuidTable::unpack(b) {
                t.index_of("x");
            }
        });
    }
}
