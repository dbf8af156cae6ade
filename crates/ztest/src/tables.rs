//! Dedup tables under load: file systems begin and cease to deduplicate, tables are pruned and kept below a quota.

use crate::desk::Desk;
use crate::scans::refused;
use crate::Dice;
use admin::commands::{told, Commands, ROOT};
use admin::pools::{dedup, set};
use base::{Kind, Result};

/// Version of pools from which on they deduplicate.
const DEDUP_VERSION: u64 = 21;

impl Desk<'_> {
    /// A part of the unique entries goes, there is another quota, or a file system begins or ceases to deduplicate.
    pub fn prune(&self, dice: &mut Dice) -> Result<()> {
        let name = &self.options().pool;
        let done = match dice.below(6) {
            0..=1 => return self.share(dice),
            2 => {
                let quota = ["none", "auto", "32K", "1M"][dice.below(4) as usize];
                let list = vec![("dedup_table_quota".to_string(), quota.to_string())];
                let command = format!("zpool set dedup_table_quota={quota} {name}");
                set::set(self.admin(), ROOT, name, &list, &command)
            }
            _ => {
                let percent = 1 + dice.below(100);
                let what = api::Prune::Percent(percent);
                let command = format!("zpool ddtprune -p {percent} {name}");
                dedup::prune(self.admin(), ROOT, name, what, &command)
            }
        };
        match done.map_err(told) {
            Err(e) if refused(&e) || e.kind == Kind::Unsupported => Ok(()),
            done => done,
        }
    }

    /// Has a file system deduplicate from now on, or not.
    fn share(&self, dice: &mut Dice) -> Result<()> {
        if self.pool()?.version() < DEDUP_VERSION {
            return Ok(());
        }
        let value = match dice.below(3) {
            0 => "on",
            _ => "off",
        };
        let n = dice.below(self.options().sets);
        let name = (n > 0).then(|| format!("fs{n}"));
        let full = self.full(name.as_deref());
        Commands(self.admin().clone()).set(&full, "dedup", value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::tests::on_pool;
    use crate::layout::Layout;
    use base::mutation::{mutate, Mutation};
    use vdev::GroupKind;
    use zpl::{Cred, New, WriteOpts};

    /// Two files have the same bytes; all entries are pruned that may be, and one of the files goes.
    fn pruned(d: &Desk<'_>, mistake: Option<Mutation>) -> Result<()> {
        let pool = d.pool()?;
        Commands(d.admin().clone()).set(&d.full(None), "dedup", "on")?;
        let fs = d.mount(0, &mut Dice::new(2))?;
        let (root, cred) = (fs.zfs.root()?, Cred::root());
        let byte = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        let data: Vec<u8> = (0..1u64 << 20).map(byte).collect();
        for name in ["a", "b"] {
            let new = New::file(0o100_644, 0);
            let z = fs.zfs.create(&root, name.as_bytes(), &new, &cred)?;
            fs.zfs.write(&z, 0, &data, WriteOpts::default())?;
        }
        pool.sync()?;
        mutate(mistake);
        let all = api::Prune::Percent(100);
        let name = &d.options().pool;
        dedup::prune(d.admin(), ROOT, name, all, "zpool ddtprune").map_err(told)?;
        fs.zfs.unlink(&root, b"b", &cred)?;
        fs.zfs.reap()?;
        pool.sync()?;
        mutate(None);
        d.unmount(fs)?;
        pool.sync()?;
        crate::lives::judge(&pool).map_err(|e| base::Error::new(Kind::Damaged, e))
    }

    #[test]
    fn pruned_tables_lose_nothing_and_a_shared_entry_that_goes_is_found() {
        let layout = Layout {
            kind: GroupKind::Single,
            tops: 1,
            width: 1,
            ashift: 12,
        };
        on_pool("prune", &layout, |d| pruned(d, None)).unwrap();
        let mistake = Some(Mutation::PruneTakesShared);
        let found = on_pool("prune-shared", &layout, |d| pruned(d, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }
}
