//! Pools of mirrors are split under load: everything in the new pool can be read, whatever is done to the old one meanwhile.

use crate::desk::Desk;
use crate::layout::TUNABLES;
use crate::lives;
use crate::scans::refused;
use crate::shapes::data;
use admin::commands::{told, ROOT};
use admin::pools::split;
use api::PoolSplit;
use base::{bail, Error, Kind, Result};
use pool::{OpenOptions, Pool};
use vdev::{Attach, Aux, VdevKind};

/// Whether a split is refused because of what others do, or because a device is out of use.
fn not_now(e: &Error) -> bool {
    refused(e) || matches!(e.kind, Kind::NoSpace | Kind::NoDevice)
}

impl Desk<'_> {
    /// `zpool split`: the last side of each mirror becomes a pool of its own, in which everything is read. Then each mirror gets another
    /// side, filled sequentially or by a resilver. False: it is no such pool, or the split was refused.
    pub fn split(&self, sequential: bool, stop: &dyn Fn() -> bool) -> Result<bool> {
        let pool = self.pool()?;
        let_go(&pool)?;
        if data(&pool).iter().any(|t| t.kind() != VdevKind::Mirror) {
            return Ok(false);
        }
        let name = &self.options().pool;
        let half = format!("{name}half");
        let ask = PoolSplit {
            pool: name.clone(),
            name: half.clone(),
            command: format!("zpool split {name} {half}"),
            ..PoolSplit::default()
        };
        let done = match split::split(self.admin(), ROOT, &ask).map_err(told) {
            Err(e) if not_now(&e) => return Ok(false),
            done => done?,
        };
        if let Some(why) = done.warning {
            bail!(Damaged, "{why}");
        }
        judge_half(&half, &done.paths)?;
        for top in data(&pool) {
            let Some(leaf) = top.leaves().into_iter().find(|l| l.state().usable()) else {
                continue;
            };
            let path = self.idle_image(&pool, &leaf)?;
            let how = (Attach::Mirror, sequential);
            match self.fill(&pool, &leaf, &path, how, stop) {
                Err(e) if refused(&e) => {}
                Ok(false) => break,
                filled => drop(filled?),
            }
        }
        Ok(true)
    }
}

/// What a process left that was killed in the middle of a split: the old pool lets go of sides that belong to the new one.
fn let_go(pool: &Pool) -> Result<()> {
    let leaves = pool.tree().leaves();
    for leaf in leaves.iter().filter(|l| l.aux() == Aux::SplitPool) {
        match pool.detach(leaf.guid()) {
            Err(e) if refused(&e) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Everything in the pool that was split off can be read, and its space adds up. It is destroyed then.
fn judge_half(name: &str, paths: &[String]) -> Result<()> {
    let env = env_linux::linux_env();
    let found = vdev::discover(&env, paths);
    let Some(p) = found.pools.iter().find(|p| p.name == name) else {
        bail!(NotFound, "no pool '{name}' was split off");
    };
    let opts = OpenOptions {
        tunables: TUNABLES,
        ..OpenOptions::default()
    };
    let half = Pool::open(env, &p.config, opts)?;
    let judged = lives::judge(&half);
    half.destroy()?;
    judged.map_err(|e| Error::new(Kind::Damaged, format!("the pool that was split off: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::tests::on_pool;
    use crate::layout::Layout;
    use crate::Dice;
    use vdev::GroupKind;
    use zpl::{Cred, New, WriteOpts};

    #[test]
    fn a_pool_of_mirrors_is_split_and_gets_other_sides() {
        let layout = Layout {
            kind: GroupKind::Mirror,
            tops: 2,
            width: 2,
            ashift: 12,
        };
        on_pool("split", &layout, |d| {
            let pool = d.pool()?;
            let fs = d.mount(0, &mut Dice::new(1))?;
            let (root, cred) = (fs.zfs.root()?, Cred::root());
            let z = fs
                .zfs
                .create(&root, b"f", &New::file(0o100_644, 0), &cred)?;
            let widths =
                || -> Vec<usize> { data(&pool).iter().map(|t| t.children().len()).collect() };
            for n in 0..3u64 {
                let bytes = vec![n as u8 + 1; 1 << 20];
                fs.zfs.write(&z, n << 20, &bytes, WriteOpts::default())?;
                assert!(d.split(n % 2 == 0, &|| false)?);
                assert_eq!(widths(), [2, 2]);
            }
            // While there is a checkpoint nothing is split.
            d.keep_or_discard()?;
            assert!(!d.split(true, &|| false)?);
            drop((z, root));
            d.unmount(fs)?;
            lives::judge(&pool).map_err(|e| Error::new(Kind::Damaged, e))
        })
        .unwrap();
    }
}
