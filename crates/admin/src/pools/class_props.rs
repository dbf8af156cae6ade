//! Properties about the space of a pool, and of each allocation class, with the names that OpenZFS has for them.

use super::tree::expandable;
use api::Value;
use pool::Pool;
use space::{Class, ClassStats, Stats};

/// Prefix of properties of a class.
const PREFIX: &str = "class_";

/// Names of classes, and of what is told of each.
const CLASSES: [&str; 6] = ["normal", "special", "dedup", "log", "elog", "special_elog"];
const FIGURES: [&str; 9] = [
    "size",
    "capacity",
    "free",
    "allocated",
    "available",
    "usable",
    "used",
    "expandsize",
    "fragmentation",
];
/// Properties of the whole pool.
const WHOLE: [&str; 5] = ["available", "usable", "used", "dedupused", "dedupsaved"];

/// Whether there is such a property. Nobody sets any of them.
pub fn is_one(name: &str) -> bool {
    let class = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.rsplit_once('_'));
    class.is_some_and(|(class, what)| CLASSES.contains(&class) && FIGURES.contains(&what))
        || WHOLE.contains(&name)
}

/// The value of such a property; none if it is another property.
pub fn value(pool: &Pool, space: &Stats, name: &str) -> Option<Value> {
    if let Some(rest) = name.strip_prefix(PREFIX) {
        let (class, what) = rest.rsplit_once('_')?;
        return of_class(pool, space, class, what);
    }
    let classes = [space.normal, space.special, space.dedup, space.embedded_log];
    let all = classes.iter().fold(ClassStats::default(), sum);
    match name {
        "available" | "usable" | "used" => figure(&all, name),
        _ => None,
    }
}

fn sum(a: ClassStats, b: &ClassStats) -> ClassStats {
    ClassStats {
        size: a.size + b.size,
        allocated: a.allocated + b.allocated,
        deferred: a.deferred + b.deferred,
        dsize: a.dsize + b.dsize,
        dallocated: a.dallocated + b.dallocated,
        ddeferred: a.ddeferred + b.ddeferred,
    }
}

/// Sums of one class; no property of that name: none.
fn figure(c: &ClassStats, what: &str) -> Option<Value> {
    let (allocated, used) = (c.allocated + c.deferred, c.dallocated + c.ddeferred);
    Some(Value::Number(match what {
        "size" => c.size,
        "allocated" => allocated,
        "free" => c.size.saturating_sub(allocated),
        "capacity" => (u128::from(allocated) * 100)
            .checked_div(c.size.into())
            .unwrap_or(0) as u64,
        "usable" => c.dsize,
        "used" => used,
        "available" => c.dsize.saturating_sub(used),
        _ => return None,
    }))
}

fn of_class(pool: &Pool, space: &Stats, class: &str, what: &str) -> Option<Value> {
    let (stats, class) = match class {
        "normal" => (space.normal, Some(Class::Normal)),
        "special" => (space.special, Some(Class::Special)),
        "dedup" => (space.dedup, Some(Class::Dedup)),
        "log" => (space.log, Some(Class::Log)),
        "elog" => (space.embedded_log, None),
        // No part of special vdevs is set aside for the log.
        "special_elog" => (ClassStats::default(), None),
        _ => return None,
    };
    let vdevs = || space.vdevs.iter().filter(|v| Some(v.class) == class);
    match what {
        "expandsize" => {
            let tops = pool.tree().tops();
            let grown = vdevs().filter_map(|v| tops.get(v.id as usize));
            Some(Value::Number(grown.map(|t| expandable(t)).sum()))
        }
        "fragmentation" => {
            let size: u64 = vdevs().map(|v| v.size).sum();
            let known = pool.has_map_histograms() && vdevs().all(|v| v.fragmentation.is_some());
            let weighted =
                vdevs().map(|v| u128::from(v.size) * u128::from(v.fragmentation.unwrap_or(0)));
            let mean = weighted.sum::<u128>().checked_div(size.into());
            Some(match mean.filter(|_| known) {
                Some(percent) => Value::Number(percent as u64),
                None => Value::None,
            })
        }
        _ => figure(&stats, what),
    }
}
