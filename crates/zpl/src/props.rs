//! Properties of a mounted file system that the POSIX layer obeys.

/// Property `xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// `off`: none.
    Off,
    /// `dir`: as files of a hidden directory.
    Dir,
    /// `sa`: in a system attribute, where they fit.
    Sa,
}

/// Property `acltype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    /// `off`: none.
    Off,
    /// `posix`: POSIX ACLs.
    Posix,
    /// `nfsv4`: NFSv4 ACLs, which are stored and not enforced on Linux.
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
    /// Nothing.
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
    /// As programs ask for.
    Standard,
    /// Every change waits until it is durable.
    Always,
    /// Nothing waits; `fsync` returns at once.
    Disabled,
}

/// Property `logbias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBias {
    /// Short waits: synchronous writes go to log devices, if there are any.
    Latency,
    /// Large writes go to their places, and only a pointer into the log.
    Throughput,
}

/// Properties that may change while the file system is mounted.
#[derive(Clone, Debug)]
pub struct Props {
    /// Nothing can be changed.
    pub readonly: bool,
    /// Reading changes access times.
    pub atime: bool,
    /// Access times change after a change of the file, or once a day.
    pub relatime: bool,
    /// Directories have access times, too (mount option `nodiratime`).
    pub diratime: bool,
    /// Bytes, a power of two.
    pub recordsize: usize,
    /// Where extended attributes are stored.
    pub xattr: XattrMode,
    /// Which ACLs there are.
    pub acltype: AclType,
    /// What chmod does to a list that says more than the mode.
    pub aclmode: AclMode,
    /// What new objects inherit.
    pub aclinherit: AclInherit,
    /// 512-byte dnode slots of new files (dnodesize: legacy 1, auto 2).
    pub dnode_slots: u8,
    /// Which writes wait until they are durable.
    pub sync: SyncMode,
    /// What the intent log is tuned for.
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
