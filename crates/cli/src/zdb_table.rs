//! Options of `zdb`, which examines pools without a daemon. The program itself refuses combinations that make no sense, and says why.

use crate::table::{long, opt, sw, Complete, Sub};

/// The command line of `zdb`, as a table like a subcommand's.
pub static ZDB: Sub = Sub {
    name: "zdb",
    aliases: &[],
    about: "Show what is on the disks of a pool, and verify it.",
    operands: "[pool[/dataset | objset-ID] [object | range]... | device]",
    flags: &[
        sw('b', "Walk all blocks, count them, and compare with the space maps. Twice: by type and size. Three times: by level, and embedded ones by length. Four times: types by physical size.").long("block-stats").many(),
        sw('B', "A backup stream of a dataset. Not supported: 'zfs send' makes streams.").long("backup"),
        sw('c', "With the walk: read metadata and verify checksums. Twice: data too. Three times: each copy of a block by itself.").long("checksum").many(),
        sw('C', "The configuration of the pool. Twice: also the one it was found with. Without a pool (or without anything): the cache file.").long("config").many(),
        sw('d', "Datasets. Twice: their objects. Three times: deadlists. Four times: what objects hold. Five times: their block pointers. Six times: what they inherit.").long("datasets").many(),
        sw('D', "Dedup tables. Twice: a histogram of all. Three times: of each. Four times: the entries of duplicate blocks. Five times: of unique blocks too.").long("dedup-stats").many(),
        opt('E', "word0:word1:...:word15", "Decode the block that an embedded block pointer carries.").long("embedded-block-pointer"),
        sw('h', "The history, internal records too.").long("history").many(),
        sw('i', "The intent logs. Twice: their records. Three times: what they say. Four times: their blocks. Five times: with their pointers.").long("intent-logs").many(),
        sw('l', "Labels of a device, and the header of a cache device. Twice: also what takes their space. Three times: each copy by itself. With -u its uberblocks.").long("label").many(),
        sw('m', "Metaslabs [vdev [metaslab]...] and the logs of space maps. Twice: histograms on disk. Three times: of what is free. Four times: all entries.").long("metaslabs").many(),
        sw('M', "Sums over the metaslabs of each vdev and the pool. Twice: special vdevs too.").long("metaslab-groups").many(),
        sw('N', "As -d, but what follows the pool is the number of a dataset.").long("numeric-objset"),
        sw('O', "Look up a path in a dataset: operands dataset and path.").long("object-lookups"),
        sw('r', "Copy a file out: operands dataset, path and destination.").long("copy-object"),
        sw('R', "Blocks by address: operands pool and vdev:offset:[lsize/]psize[:flags], hexadecimal; flags bOFFSET pointer there, c checksums, d decompress, e swap bytes, g gang header, i indirect block, r raw, v verbose.").long("read-block"),
        sw('s', "What was read from the devices.").long("io-stats").many(),
        sw('S', "What a dedup table of all data would look like.").long("simulate-dedup").many(),
        sw('T', "Block reference tables. Twice: by vdev. Three times: histograms. Four times: the entries. Five times: the counters.").long("brt-stats").many(),
        sw('u', "The uberblock the pool would be opened with.").long("uberblock").many(),
        sw('y', "Verify the livelists of clones that are being destroyed.").long("livelist"),
        sw('Z', "With block pointers: what the headers of blocks compressed with zstd say.").long("zstd-headers").many(),
        sw('A', "Accepted: there are no assertions to ignore; what can be read is always shown.").long("ignore-assertions").many(),
        sw('e', "The pool is not imported: look for its devices by their labels.").long("exported"),
        sw('F', "Open one of the last states before the newest if that cannot be opened.").long("automatic-rewind"),
        sw('G', "Messages for debugging. There are none; it says so.").long("dump-debug-msg"),
        opt('I', "number", "Accepted: how many blocks are verified at once is fixed.").long("inflight"),
        sw('k', "Show the state that the checkpoint keeps; the pool does not go back to it.").long("checkpointed-state"),
        opt('K', "key", "The key of the dataset named: a passphrase, or hexadecimal digits. Others on this machine may see it.").long("key"),
        sw('L', "With the walk: do not compare with the space maps.").long("disable-leak-tracking"),
        opt('o', "var=value", "Variables of libzpool. Not supported: there are none.").long("option").many(),
        opt('p', "path", "Directory with devices or images, or one of them, to look in; implies -e.").long("path").many(),
        sw('P', "Numbers in full, not scaled.").long("parseable"),
        sw('q', "With -l: only the exit status, and with -u the uberblocks.").long("skip-label"),
        opt('t', "txg", "Open the state as of this transaction group, or the newest before it.").long("txg"),
        opt('U', "cachefile", "Take the list of devices from this cache file.").long("cachefile"),
        sw('v', "More of everything asked for.").long("verbose").many(),
        sw('V', "Accepted with -e: devices are always taken by what their labels say.").long("verbatim"),
        opt('x', "dumpdir", "Copy all blocks read into sparse files in this directory, called like the devices; they must not be there yet.").long("dump-blocks"),
        sw('X', "As -F, but any older state.").long("extreme-rewind"),
        sw('Y', "Accepted: all ways of putting a damaged block together are always tried.").long("all-reconstruction"),
        long("version", "Print the version."),
    ],
    text: &[
        "Never writes: devices are opened for reading only. A pool that is imported while zdb reads it \
         changes under its eyes; blocks freed meanwhile may then be reported as damaged or leaked.",
        "Without -e the pool is found in the cache file of the caller's daemon. A user who may read \
         the devices or images needs no other rights.",
        "A target without '/' or '@' is a pool, 'pool/' its root dataset. Ranges of objects are \
         start:end[:flags], end -1 is the last; flags select kinds: A all, d directories, f files, m \
         space maps, z ZAPs, and - before one excludes it.",
        "Without a switch that shows something, everything about the pool or the dataset is shown as if each switch had been given twice.",
        "The figures are those of OpenZFS's zdb 2.3; the layout of the text is not promised.",
        "The exit status is 1 if something could not be read or opened, 2 if something is wrong with the \
         structure of the pool (space that belongs to two blocks or to none, numbers that do not agree) \
         or the command line is wrong, 3 if blocks could not be read or verified by -b or -c. Of -l: 0 all \
         labels are whole, 1 some are not, 2 none is.",
    ],
    complete: Complete::Pools,
    built: true,
};
