//! Options of `zdb`, the examiner of pools; it needs no daemon. An option whose flag is not marked
//! as built is refused with a sentence: whoever builds it takes the mark away here.

use crate::table::{opt, sw, Complete, Sub};

/// The command line of `zdb`, as a table like a subcommand's.
pub static ZDB: Sub = Sub {
    name: "zdb",
    aliases: &[],
    about: "Show what is on the disks of a pool, and verify it.",
    operands: "[pool[/dataset] [object]... | device]",
    flags: &[
        sw('l', "Labels of a device. With -u its uberblocks too. Twice: each label copy by itself."),
        sw('u', "The uberblock the pool would be opened with."),
        sw('C', "The configuration of the pool."),
        sw('d', "Datasets. Twice: their objects. Three times: what objects hold. Four times: their block pointers.").many(),
        sw('b', "Walk all blocks, count them, and compare with the space maps. Twice: by type.").many(),
        sw('c', "With the walk: read all data and verify checksums. Twice: every copy.").many(),
        sw('e', "The pool is not imported: look for its devices by their labels."),
        opt('p', "path", "Directory with devices or images, or one of them, to look in; implies -e.").many(),
        opt('U', "cachefile", "Take the list of devices from this cache file."),
        opt('t', "txg", "Open the state as of this transaction group, or the newest before it."),
        sw('L', "With the walk: do not compare with the space maps."),
        sw('F', "Go back some transaction groups if the pool cannot be opened otherwise.").later(),
        sw('h', "The history, internal records too."),
        sw('i', "The intent logs.").many().later(),
        sw('m', "Metaslabs and what is free in them."),
        opt('R', "vdev:offset:size[:flags]", "A block.").later(),
        sw('s', "I/O statistics.").later(),
        sw('v', "More of everything.").many().later(),
        sw('V', "Print the version.").long("version"),
    ],
    text: &[
        "Never writes. A pool that is imported while zdb reads it changes under its eyes; blocks \
         freed meanwhile may then be reported as damaged or leaked.",
        "Without -e the pool is found in the cache file of the daemon of whoever calls.",
        "The exit status is 1 if something could not be read, and 2 if something is wrong with \
         the pool: a block that cannot be read or verified, space that belongs to two blocks, or \
         to none. Not compared are removed devices and what only a checkpoint holds.",
    ],
    complete: Complete::Pools,
    built: true,
};
