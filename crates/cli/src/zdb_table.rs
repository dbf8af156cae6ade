//! Options of `zdb`, the examiner of pools; it needs no daemon. An option whose flag is not marked
//! as built is refused with a sentence: whoever builds it takes the mark away here.

use crate::table::{opt, sw, Complete, Sub};

/// The command line of `zdb`, as a table like a subcommand's.
pub static ZDB: Sub = Sub {
    name: "zdb",
    aliases: &[],
    about: "Examine ZFS pools and devices without changing them.",
    operands: "[pool[/dataset] [object...]|device]",
    flags: &[
        sw('b', "Walk all blocks, count them, and report leaks.").later(),
        sw(
            'c',
            "With -b: verify the checksums of metadata; twice: of all blocks.",
        )
        .many()
        .later(),
        sw('C', "Print the configuration.").later(),
        sw('d', "List datasets; more often: objects and their blocks.")
            .many()
            .later(),
        sw(
            'e',
            "The pool is not in the cache file: search its devices.",
        )
        .later(),
        sw(
            'F',
            "Go back some transaction groups if the pool cannot be opened otherwise.",
        )
        .later(),
        sw('h', "Print the history.").later(),
        sw('i', "Print the intent logs.").many().later(),
        sw('l', "Print the labels of a device.").many().later(),
        sw('L', "Do not look for leaks.").later(),
        sw('m', "Print metaslabs and space maps.").many().later(),
        opt('p', "path", "With -e: where to search.").many().later(),
        opt('R', "vdev:offset:size[:flags]", "Print a block.").later(),
        sw('s', "Print I/O statistics.").later(),
        sw('u', "Print the uberblock in use; with -l: all of a device.")
            .many()
            .later(),
        sw('v', "Print more.").many().later(),
    ],
    text: &[
        "Reads the devices directly, read-only. What it prints is meant for people who know the \
         format, and changes from version to version.",
    ],
    complete: Complete::Pools,
    built: true,
};
