//! Where the bytes of a block lie: sizes, RAID-Z and dRAID maps, mappings of removed vdevs. Arithmetic without I/O.

pub mod draid;
mod draid_maps;
pub mod indirect;
pub mod map;
pub mod size;
