//! Which blocks a property is for: `primarycache`, `secondarycache` and `prefetch`.

use disk::BlkPtr;

/// All blocks of a dataset, those of its metadata only, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Content and metadata. The default of these properties.
    #[default]
    All,
    /// Indirect blocks, dnodes, directories, attributes; not the content of files and volumes.
    Metadata,
    /// No block.
    Nothing,
}

impl Scope {
    /// From the number the property is stored as; unknown ones mean all, as the default does.
    pub fn from_property(n: u64) -> Scope {
        match n {
            0 => Scope::Nothing,
            1 => Scope::Metadata,
            _ => Scope::All,
        }
    }

    /// Whether blocks of metadata, or else of content, are meant.
    pub fn includes(self, metadata: bool) -> bool {
        match self {
            Scope::All => true,
            Scope::Metadata => metadata,
            Scope::Nothing => false,
        }
    }

    pub(crate) fn has(self, bp: &BlkPtr) -> bool {
        self.includes(bp.level() > 0 || bp.obj_type().is_metadata())
    }
}
