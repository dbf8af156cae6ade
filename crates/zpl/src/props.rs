//! Properties of a mounted file system that the POSIX layer obeys.

/// Property `xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Off,
    Dir,
    Sa,
}

/// Property `acltype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    Off,
    Posix,
    Nfsv4,
}

/// Property `aclmode`: what chmod does to a list that says more than the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclMode {
    /// Only what the mode says remains.
    Discard,
    /// Others get no more than the group.
    Groupmask,
    /// Other entries stay as they are.
    Passthrough,
    /// chmod is refused.
    Restricted,
}

/// Property `aclinherit`: what a new object gets of the inheritable entries of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclInherit {
    Discard,
    /// Only what denies.
    NoAllow,
    /// Without the rights to change list and owner.
    Restricted,
    /// As they are; entries about owner@, group@ and everyone@ stand for the mode.
    Passthrough,
    /// The same, but files are only executable if the creating mode says so.
    PassthroughX,
}

/// Property `sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    Standard,
    Always,
    Disabled,
}

/// Property `logbias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBias {
    Latency,
    Throughput,
}

/// Properties that may change while the file system is mounted.
#[derive(Clone, Debug)]
pub struct Props {
    pub readonly: bool,
    pub atime: bool,
    pub relatime: bool,
    /// Directories have access times, too (mount option `nodiratime`).
    pub diratime: bool,
    /// Bytes, a power of two.
    pub recordsize: usize,
    pub xattr: XattrMode,
    pub acltype: AclType,
    pub aclmode: AclMode,
    pub aclinherit: AclInherit,
    /// 512-byte dnode slots of new files (dnodesize: legacy 1, auto 2).
    pub dnode_slots: u8,
    pub sync: SyncMode,
    pub logbias: LogBias,
    /// Names up to 1023 bytes.
    pub longname: bool,
    /// `direct=always`: those who show the files to others let nobody cache their content.
    pub direct: bool,
    /// Feature project_quota is enabled: new objects get a project id attribute.
    pub project_quota: bool,
    /// User extended attributes without their `user.` prefix, as illumos and FreeBSD store them.
    pub xattr_compat: bool,
}

impl Default for Props {
    fn default() -> Props {
        Props {
            readonly: false,
            atime: true,
            relatime: true,
            diratime: true,
            recordsize: 128 << 10,
            xattr: XattrMode::Sa,
            acltype: AclType::Off,
            aclmode: AclMode::Discard,
            aclinherit: AclInherit::Restricted,
            dnode_slots: 1,
            sync: SyncMode::Standard,
            logbias: LogBias::Latency,
            longname: false,
            direct: false,
            project_quota: false,
            xattr_compat: false,
        }
    }
}
