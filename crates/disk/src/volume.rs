//! The two objects of a volume's object set, which have the same numbers in every volume (data format §26).

/// Object with the bytes, of type [`ZVOL`](crate::ObjType::ZVOL). Its block size is `volblocksize`.
pub const DATA: u64 = 1;
/// ZAP of type [`ZVOL_PROP`](crate::ObjType::ZVOL_PROP).
pub const PROPS: u64 = 2;
/// Entry of [`PROPS`]: `volsize`, bytes.
pub const SIZE: &str = "size";
