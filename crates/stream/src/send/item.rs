//! Items: what a traversal finds, in the order of the stream.

use base::Block;
use disk::{BlkPtr, DnodePhys};

/// One thing to be sent. Block numbers and sizes are those of the object; an end is exclusive.
pub(super) enum Item {
    /// Encryption parameters of a block of dnodes; raw streams only.
    ObjectRange { first: u64, slots: u64, bp: BlkPtr },
    /// An object that is there.
    Object {
        object: u64,
        dn: Box<DnodePhys>,
        /// The bonus in use; in raw streams all of the bonus area, as it is stored.
        bonus: Vec<u8>,
        /// The dnode is stored in the other byte order.
        swapped: bool,
    },
    /// Dnode slots without an object.
    FreeSlots { first: u64, count: u64 },
    /// A hole; of the meta-dnode a range of dnode blocks.
    Hole {
        object: u64,
        start: u64,
        end: u64,
        /// Bytes.
        block_size: u64,
    },
    /// Blocks whose content is left out.
    Redacted {
        object: u64,
        start: u64,
        count: u64,
        /// Bytes.
        block_size: u64,
    },
    /// A block of data.
    Data {
        object: u64,
        blkid: u64,
        bp: BlkPtr,
        /// Type of the object.
        obj_type: u8,
        /// Bytes.
        block_size: usize,
    },
    /// A spill block.
    Spill { object: u64, bp: BlkPtr },
}

/// The data of an item.
pub(super) enum Got {
    /// As a file reads.
    Plain(Block),
    /// As they are stored.
    Stored(Vec<u8>),
}

impl Got {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Got::Plain(b) => b,
            Got::Stored(b) => b,
        }
    }
}
