//! What `zpool status -D` says of dedup tables.

use api::DedupTables;
use base::sizes::nice;
use cli::json::{Object, Put, Style};

/// Words of the table for each power of two of the number of references.
const ROW: usize = 8;

/// Lines behind the others. `exact`: numbers as they are.
pub fn lines(d: &DedupTables, exact: bool) -> String {
    if d.entries == 0 {
        return "\n dedup: no DDT entries\n".into();
    }
    let number = |n: u64| match exact {
        true => n.to_string(),
        false => nice(n, false),
    };
    let bytes = |n: u64| match exact {
        true => n.to_string(),
        false => nice(n, true),
    };
    let cached = d.cached.map_or(String::new(), |n| {
        let part = 100.0 * n as f64 / d.in_core.max(1) as f64;
        format!(", {} cached ({part:.2}%)", number(n))
    });
    format!(
        "\n dedup: DDT entries {}, size {} on disk, {} in core{cached}\n{}",
        d.entries,
        number(d.on_disk),
        number(d.in_core),
        cli::dedup_table::table(&d.histogram, true, &number, &bytes)
    )
}

/// The same for `-j`.
pub fn json(d: &DedupTables, style: Style) -> Object {
    let number = |n: u64| style.nice(n, || nice(n, false));
    let mut o = Object::new().with("obj_count", number(d.entries));
    if d.entries == 0 {
        return o.with("ddt_object_stats", Object::new());
    }
    o.put("dspace", number(d.on_disk));
    o.put("mspace", number(d.in_core));
    o.put("cspace", number(d.cached.unwrap_or(0)));
    let mut sum = [0u64; ROW];
    let mut rows = Object::new();
    for (i, w) in d.histogram.chunks_exact(ROW).enumerate() {
        for (sum, v) in sum.iter_mut().zip(w) {
            *sum = sum.wrapping_add(*v);
        }
        if w[0] != 0 {
            rows.put(i.to_string(), figures(w, style));
        }
    }
    let total = match sum[0] {
        0 => Object::new().with("blocks", "0"),
        _ => figures(&sum, style),
    };
    let mut stats = Object::new().with("total", total);
    if !rows.is_empty() {
        stats.put("histogram", rows);
    }
    o.with("ddt_stats", stats)
}

fn figures(w: &[u64], style: Style) -> Object {
    let mut o = Object::new();
    for (i, key) in [
        "blocks",
        "logical_size",
        "physical_size",
        "deflated_size",
        "ref_blocks",
        "ref_lsize",
        "ref_psize",
        "ref_dsize",
    ]
    .into_iter()
    .enumerate()
    {
        let n = w.get(i).copied().unwrap_or(0);
        o.put(key, style.nice(n, || nice(n, i % (ROW / 2) != 0)));
    }
    o
}

#[cfg(test)]
mod tests {
    use crate::testing::{run, sample, Fake};
    use api::DedupTables;

    #[test]
    fn dedup_tables_are_shown_as_openzfs_shows_them() {
        let mut p = sample("tank");
        p.dedup = Some(DedupTables::default());
        let shown = |p: &api::Pool, line: &str| run(line, &mut Fake::with(vec![p.clone()])).1;
        let out = shown(&p, "status -D");
        let none = "errors: No known data errors\n\n dedup: no DDT entries\n";
        assert!(out.ends_with(none), "{out}");
        let out = shown(&p, "status -Dj");
        let none = "\"dedup_stats\":{\"obj_count\":\"0\",\"ddt_object_stats\":{}},\"error_count\"";
        assert!(out.contains(none), "{out}");
        let d = DedupTables {
            entries: 32,
            on_disk: 12_288,
            in_core: 65_536,
            cached: None,
            histogram: [
                vec![0; 8],
                vec![32, 4 << 20, 4 << 20, 4 << 20, 64, 8 << 20, 8 << 20, 8 << 20],
            ]
            .concat(),
        };
        p.dedup = Some(d.clone());
        let out = shown(&p, "status -D");
        let want = "\n dedup: DDT entries 32, size 12K on disk, 64K in core\n\n\
             bucket              allocated                       referenced          \n";
        assert!(out.contains(want), "{out}");
        let want = "     2       32      4M      4M      4M       64      8M      8M      8M\n \
             Total       32      4M      4M      4M       64      8M      8M      8M\n\n";
        assert!(out.ends_with(want), "{out}");
        p.dedup = Some(DedupTables {
            cached: Some(49_152),
            ..d
        });
        let out = shown(&p, "status -DD -p");
        let want =
            " dedup: DDT entries 32, size 12288 on disk, 65536 in core, 49152 cached (75.00%)\n";
        assert!(out.contains(want), "{out}");
        let out = shown(&p, "status -DDj");
        let want = "\"dedup_stats\":{\"obj_count\":\"32\",\"dspace\":\"12K\",\"mspace\":\"64K\",\"cspace\":\"48K\",\
             \"ddt_stats\":{\"total\":{\"blocks\":\"32\",\"logical_size\":\"4M\",";
        assert!(out.contains(want), "{out}");
        assert!(
            out.contains("\"histogram\":{\"1\":{\"blocks\":\"32\","),
            "{out}"
        );
        // Without the option the daemon is not asked.
        p.dedup = None;
        assert!(!shown(&p, "status").contains("dedup"));
    }
}
