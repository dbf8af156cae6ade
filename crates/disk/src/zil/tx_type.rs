//! Types of log records, by their numbers on disk (pool format §26).

/// The type of a log record. The number on disk is the discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxType {
    /// A file is created.
    Create = 1,
    /// A directory is created.
    Mkdir = 2,
    /// An extended attribute directory is created.
    Mkxattr = 3,
    /// A symbolic link is created.
    Symlink = 4,
    /// A name of a file is removed.
    Remove = 5,
    /// A directory is removed.
    Rmdir = 6,
    /// A file gets a further name.
    Link = 7,
    /// A name is changed.
    Rename = 8,
    /// Data is written.
    Write = 9,
    /// A range is freed.
    Truncate = 10,
    /// Attributes are set.
    Setattr = 11,
    /// An ACL of version 0 is set.
    AclV0 = 12,
    /// An ACL is set.
    Acl = 13,
    /// [`Create`](TxType::Create) with an ACL.
    CreateAcl = 14,
    /// [`Create`](TxType::Create) with further attributes.
    CreateAttr = 15,
    /// [`Create`](TxType::Create) with both.
    CreateAclAttr = 16,
    /// [`Mkdir`](TxType::Mkdir) with an ACL.
    MkdirAcl = 17,
    /// [`Mkdir`](TxType::Mkdir) with further attributes.
    MkdirAttr = 18,
    /// [`Mkdir`](TxType::Mkdir) with both.
    MkdirAclAttr = 19,
    /// A file becomes longer, without data.
    Write2 = 20,
    /// An extended attribute in the `DXATTR` attribute is set or removed.
    SetSaXattr = 21,
    /// Two names are exchanged.
    RenameExchange = 22,
    /// A name is changed, and a whiteout takes the old one.
    RenameWhiteout = 23,
    /// Blocks of another file are cloned.
    CloneRange = 24,
}

impl TxType {
    /// All types in the order of their numbers, which begin with 1.
    const ALL: [TxType; 24] = [
        TxType::Create,
        TxType::Mkdir,
        TxType::Mkxattr,
        TxType::Symlink,
        TxType::Remove,
        TxType::Rmdir,
        TxType::Link,
        TxType::Rename,
        TxType::Write,
        TxType::Truncate,
        TxType::Setattr,
        TxType::AclV0,
        TxType::Acl,
        TxType::CreateAcl,
        TxType::CreateAttr,
        TxType::CreateAclAttr,
        TxType::MkdirAcl,
        TxType::MkdirAttr,
        TxType::MkdirAclAttr,
        TxType::Write2,
        TxType::SetSaXattr,
        TxType::RenameExchange,
        TxType::RenameWhiteout,
        TxType::CloneRange,
    ];

    /// The type with a number; `None` if this software does not know it.
    pub fn of(number: u64) -> Option<TxType> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        TxType::ALL.get(index).copied()
    }

    /// The number on disk.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// The name in OpenZFS, as `zdb -i` prints it.
    pub fn name(self) -> &'static str {
        match self {
            TxType::Create => "TX_CREATE",
            TxType::Mkdir => "TX_MKDIR",
            TxType::Mkxattr => "TX_MKXATTR",
            TxType::Symlink => "TX_SYMLINK",
            TxType::Remove => "TX_REMOVE",
            TxType::Rmdir => "TX_RMDIR",
            TxType::Link => "TX_LINK",
            TxType::Rename => "TX_RENAME",
            TxType::Write => "TX_WRITE",
            TxType::Truncate => "TX_TRUNCATE",
            TxType::Setattr => "TX_SETATTR",
            TxType::AclV0 => "TX_ACL_V0",
            TxType::Acl => "TX_ACL_ACL",
            TxType::CreateAcl => "TX_CREATE_ACL",
            TxType::CreateAttr => "TX_CREATE_ATTR",
            TxType::CreateAclAttr => "TX_CREATE_ACL_ATTR",
            TxType::MkdirAcl => "TX_MKDIR_ACL",
            TxType::MkdirAttr => "TX_MKDIR_ATTR",
            TxType::MkdirAclAttr => "TX_MKDIR_ACL_ATTR",
            TxType::Write2 => "TX_WRITE2",
            TxType::SetSaXattr => "TX_SETSAXATTR",
            TxType::RenameExchange => "TX_RENAME_EXCHANGE",
            TxType::RenameWhiteout => "TX_RENAME_WHITEOUT",
            TxType::CloneRange => "TX_CLONE_RANGE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_types() {
        for t in TxType::ALL {
            assert_eq!(TxType::of(t.number()), Some(t));
        }
        assert_eq!(TxType::CloneRange.number(), 24);
        assert_eq!(
            (TxType::of(0), TxType::of(25), TxType::of(u64::MAX)),
            (None, None, None)
        );
    }
}
