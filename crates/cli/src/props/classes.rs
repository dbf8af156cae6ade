//! The table of properties about the space of a pool that `all` does not show: of the whole pool as file systems count it, and of each
//! allocation class.

use super::data::{row, HIDDEN_NUMBER};
use super::Class::ReadOnly;
use super::Form::{BytesOrDash, Percent, Size};
use super::Info;

macro_rules! table {
    ($(($class:literal, $column:literal, $what:literal)),* $(,)?) => {
        &[
            row("available", "AVAIL", Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, "usable less used."),
            row("usable", "USABLE", Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, "size without the parity of raidz and draid vdevs."),
            row("used", "USED", Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, "allocated without the parity of raidz and draid vdevs."),
            row("dedupused", "DEDUP_USED", Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, "Space of deduplicated blocks."),
            row("dedupsaved", "DEDUP_SAVED", Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, "Space saved by deduplication."),
            $(
                row(concat!("class_", $class, "_size"), concat!($column, "_SIZE"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("size of ", $what, ".")),
                row(concat!("class_", $class, "_capacity"), concat!($column, "_CAP"), Percent, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("capacity of ", $what, ".")),
                row(concat!("class_", $class, "_free"), concat!($column, "_FREE"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("free of ", $what, ".")),
                row(concat!("class_", $class, "_allocated"), concat!($column, "_ALLOC"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("allocated of ", $what, ".")),
                row(concat!("class_", $class, "_available"), concat!($column, "_AVAIL"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("available of ", $what, ".")),
                row(concat!("class_", $class, "_usable"), concat!($column, "_USABLE"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("usable of ", $what, ".")),
                row(concat!("class_", $class, "_used"), concat!($column, "_USED"), Size, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("used of ", $what, ".")),
                row(concat!("class_", $class, "_expandsize"), concat!($column, "_EXPANDSZ"), BytesOrDash, ReadOnly, "", "<size>", "", HIDDEN_NUMBER, concat!("expandsize of ", $what, ".")),
                row(concat!("class_", $class, "_fragmentation"), concat!($column, "_FRAG"), Percent, ReadOnly, "", "<percent>", "", HIDDEN_NUMBER, concat!("fragmentation of ", $what, ".")),
            )*
        ]
    };
}

/// Properties about the space of pools.
#[rustfmt::skip]
pub static POOL_SPACE: &[Info] = table![
    ("normal", "NORMAL", "ordinary vdevs"),
    ("special", "SPECIAL", "special vdevs"),
    ("dedup", "DEDUP", "dedup vdevs"),
    ("log", "LOG", "log devices"),
    ("elog", "ELOG", "the parts of ordinary vdevs set aside for the intent log"),
    ("special_elog", "SPECIAL_ELOG", "the parts of special vdevs set aside for the intent log, which this software does not set aside"),
];
