//! Subcommands and options of `zstream` (command reference §18).

use crate::table::{opt, sw, Complete, Sub, Tool};

/// The command `zstream`.
pub static ZSTREAM: Tool = Tool {
    name: "zstream",
    about: "show and convert ZFS send streams",
    text: &[
        "Works on streams that zfs send has made, here or with OpenZFS, in files or pipes. Needs no daemon and no pool. \
         Called by the name zstreamdump it is zstream dump.",
    ],
    subs: SUBS,
    see: &["zfs(8)", "zfs-fuse(8)", "zdb(8)"],
};

static SUBS: &[Sub] = &[
    Sub {
        name: "dump",
        aliases: &[],
        about: "Show the records of a stream, and verify its checksums.",
        operands: "[file]",
        flags: &[
            sw('C', "Do not verify checksums."),
            sw('d', "Show the payloads of the records too; as -v twice."),
            sw('v', "Show each record. Twice: with its checksum.").many(),
        ],
        text: &[
            "Reads the file, or standard input. Without an option only the beginnings and ends of streams and a summary are shown.",
            "At a checksum that does not match it stops, says so and shows the summary of what came before; the exit status is 0. It is 1 if \
             the input is no stream, or a record is of an unknown type.",
        ],
        complete: Complete::Files,
        built: true,
    },
    Sub {
        name: "decompress",
        aliases: &[],
        about: "Decompress the records of some blocks.",
        operands: "[object,offset[,type]]...",
        flags: &[sw('v', "Say what was decompressed.")],
        text: &[
            "Copies the stream on standard input to standard output. The data of blocks named by object and offset in bytes are decompressed, \
             whatever the stream says of their compression: the type is off, lz4 (the default), lzjb, gzip, zle or zstd. With off, the \
             data are taken to be not compressed. Blocks that do not decompress stay as they are.",
        ],
        complete: Complete::Nothing,
        built: true,
    },
    Sub {
        name: "recompress",
        aliases: &[],
        about: "Compress the data of a stream by another algorithm.",
        operands: "type",
        flags: &[opt('l', "level", "Level of zstd: 1 to 19, or a negative one; 3 if not given.")],
        text: &[
            "Copies the stream on standard input to standard output. The data of all WRITE records are compressed by the algorithm named: off, lzjb, \
             gzip-1 to gzip-9, zle, lz4 or zstd. Blocks of which that would not save an eighth are not compressed. Raw streams are \
             copied as they are. The features in the head of the stream stay what they were, as with OpenZFS.",
        ],
        complete: Complete::Nothing,
        built: true,
    },
    Sub {
        name: "token",
        aliases: &[],
        about: "Show what a resume token says.",
        operands: "resume_token",
        flags: &[],
        text: &["The token is the value of the property receive_resume_token of a dataset that was received in part."],
        complete: Complete::Nothing,
        built: true,
    },
    Sub {
        name: "redup",
        aliases: &[],
        about: "Make a stream without references to earlier data of one that has them.",
        operands: "file",
        flags: &[sw('v', "Say how many records were converted.")],
        text: &[
            "Older versions of ZFS could leave data out of a stream that is in it already (zfs send -D). Such a stream is not received any more. \
             This writes an equivalent one, without references, to standard output. The file must not be a pipe.",
        ],
        complete: Complete::Files,
        built: true,
    },
];
