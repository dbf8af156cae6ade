//! Reads of one device fail while the pool is imported and its logs are replayed. What is refused because of that is there for the
//! next attempt.

use crate::acks::Acks;
use crate::acks_file;
use crate::desk::Desk;
use crate::layout::{self, Fs};
use crate::options::Options;
use crate::troubles::Unread;
use crate::work::Worker;
use crate::Dice;
use base::Result;

/// So many failures in a row outlast what tries again.
const BURST: u64 = 24;
/// An import with its mounts reads this often, about, as a power of two.
const READS: u64 = 11;

/// Imports the pool and mounts its file systems while reads fail, and goes away without an end. Where nothing was refused, all
/// that was acknowledged is there.
pub fn run(o: &Options, seed: u64) -> Result<()> {
    let mut dice = Dice::new(seed);
    let images = layout::images(o);
    let image = &images[dice.below(images.len() as u64) as usize];
    let most = 1 << dice.below(READS);
    let unread = Unread {
        path: layout::absolute(image)?,
        spared: dice.below(most),
        count: [1, 1, BURST][dice.below(3) as usize],
    };
    meet(o, unread, &mut dice).map(drop)
}

/// Whether everything was mounted.
fn meet(o: &Options, unread: Unread, dice: &mut Dice) -> Result<bool> {
    let desk = Desk::new(o);
    let what = format!("{unread:?}");
    desk.troubles().fail_reads(unread);
    let mounted = desk.find().and_then(|()| mount_all(&desk, dice));
    let sets = match mounted {
        Ok(sets) => sets,
        Err(e) => {
            if o.verbose {
                println!("ztest: an import is refused, {what}: {e}");
            }
            return Ok(false);
        }
    };
    desk.troubles().heal();
    let (_, facts) = Acks::open(&acks_file(o))?;
    for thread in 0..o.threads {
        let fs = &sets[(thread % o.sets) as usize];
        Worker::new(fs, thread, &facts).map_err(|e| e.context(what.clone()))?;
    }
    Ok(true)
}

fn mount_all(desk: &Desk<'_>, dice: &mut Dice) -> Result<Vec<Fs>> {
    (0..desk.options().sets)
        .map(|n| desk.mount(n, dice))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::copied;
    use crate::desk::tests::on_pool;
    use crate::layout::Layout;
    use crate::work::Counts;
    use base::mutation::{mutate, Mutation};
    use std::collections::HashMap;
    use vdev::GroupKind;

    /// Reads fail at places all over an import; what is left is imported once more.
    fn imported(d: &Desk<'_>, mistake: Option<Mutation>) -> Result<()> {
        let o = d.options();
        let (acks, _) = Acks::open(&acks_file(o))?;
        let fs = d.mount(0, &mut Dice::new(1))?;
        let mut w = Worker::new(&fs, 0, &HashMap::new())?;
        w.steps(40, &acks, &mut Dice::new(2), &Counts::default())?;
        d.pool()?.sync()?;
        w.steps(30, &acks, &mut Dice::new(3), &Counts::default())?;
        let mut refused = 0;
        for spared in (0..400).step_by(BURST as usize - 4) {
            let copy = Options {
                sets: 1,
                threads: 1,
                ..copied(o)?
            };
            let unread = Unread {
                path: layout::absolute(&layout::image(&copy, 0, 0))?,
                spared,
                count: BURST,
            };
            mutate(mistake);
            let all = meet(&copy, unread, &mut Dice::new(4));
            mutate(None);
            refused += u64::from(!all?);
            // What that process held open does not keep the next one out.
            let after = copied(&copy)?;
            let desk = Desk::import(&after)?;
            let fs = desk.mount(0, &mut Dice::new(1))?;
            let (_, facts) = Acks::open(&acks_file(&after))?;
            Worker::new(&fs, 0, &facts)?;
        }
        assert!(refused > 0, "nothing was refused");
        Ok(())
    }

    #[test]
    fn reads_that_fail_at_an_import_cost_nothing_and_a_log_that_ends_there_is_found() {
        let l = Layout {
            kind: GroupKind::Single,
            tops: 1,
            width: 1,
            ashift: 12,
        };
        on_pool("unread", &l, |d| imported(d, None)).unwrap();
        let mistake = Some(Mutation::ErrorEndsLog);
        let found = on_pool("unread", &l, |d| imported(d, mistake));
        eprintln!("{mistake:?}: {}", found.expect_err("not found"));
    }
}
