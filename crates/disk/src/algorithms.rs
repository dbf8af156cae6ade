//! Numbers of the algorithms that blocks are checksummed and compressed with (pool format §13, §14), as block pointers, dnodes
//! and properties have them. `codec` computes them.

macro_rules! algorithms {
    ($(#[$doc:meta])* $name:ident $($(#[$d:meta])* $number:literal $const:ident $text:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u8);

        impl $name {
            $($(#[$d])* pub const $const: $name = $name($number);)*
            /// Every algorithm that has a number, in the order of the numbers.
            pub const ALL: &'static [$name] = &[$($name::$const),*];

            /// The algorithm of this number. The number may be an unknown one.
            #[inline]
            pub const fn new(number: u8) -> $name {
                $name(number)
            }

            /// Its number.
            #[inline]
            pub const fn number(self) -> u8 {
                self.0
            }

            /// Name as properties and `zdb` show it; `None`: no algorithm has this number.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// The algorithm of that name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|a| a.name() == Some(name))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "{}", self.0),
                }
            }
        }
    };
}

algorithms! {
    /// A compression algorithm.
    Compression
    /// Property value: as the parent dataset has it. Not found in block pointers.
    0 INHERIT "inherit";
    /// The default of the pool's age.
    1 ON "on";
    /// Stored as it is.
    2 OFF "off";
    /// The oldest: Jeff Bonwick's variant of LZ.
    3 LZJB "lzjb";
    /// Only all-zero blocks are saved (as holes).
    4 EMPTY "empty";
    /// zlib, level 1.
    5 GZIP_1 "gzip-1";
    /// zlib, level 2.
    6 GZIP_2 "gzip-2";
    /// zlib, level 3.
    7 GZIP_3 "gzip-3";
    /// zlib, level 4.
    8 GZIP_4 "gzip-4";
    /// zlib, level 5.
    9 GZIP_5 "gzip-5";
    /// zlib, level 6: what `gzip` means.
    10 GZIP_6 "gzip-6";
    /// zlib, level 7.
    11 GZIP_7 "gzip-7";
    /// zlib, level 8.
    12 GZIP_8 "gzip-8";
    /// zlib, level 9.
    13 GZIP_9 "gzip-9";
    /// Zero length encoding.
    14 ZLE "zle";
    /// LZ4; the default where the pool has feature `lz4_compress`.
    15 LZ4 "lz4";
    /// Zstandard; its level is in the header of the compressed bytes.
    16 ZSTD "zstd";
}

impl Compression {
    /// Level of zlib, 1 to 9, if it is one of gzip's.
    pub const fn gzip_level(self) -> Option<u8> {
        match self.0 {
            n @ 5..=13 => Some(n - 4),
            _ => None,
        }
    }
}

algorithms! {
    /// A checksum algorithm.
    Checksum
    /// Property value: as the parent dataset has it. Not found in block pointers.
    0 INHERIT "inherit";
    /// Same as [`Checksum::FLETCHER4`].
    1 ON "on";
    /// No checksum.
    2 OFF "off";
    /// SHA-256 inside the region: labels, uberblocks, L2ARC headers.
    3 LABEL "label";
    /// SHA-256 inside the region: gang headers.
    4 GANG_HEADER "gang_header";
    /// Fletcher2 inside the block: intent log before pool version 23.
    5 ZILOG "zilog";
    /// Sums over pairs of 64-bit words; weak.
    6 FLETCHER2 "fletcher2";
    /// Sums over 32-bit words; the default.
    7 FLETCHER4 "fletcher4";
    /// SHA-256.
    8 SHA256 "sha256";
    /// Fletcher4 inside the used part of the block: intent log.
    9 ZILOG2 "zilog2";
    /// No checksum, and no parity on RAID-Z.
    10 NOPARITY "noparity";
    /// SHA-512/256.
    11 SHA512 "sha512";
    /// Skein-512 with 256 bits of output, keyed with the pool's salt.
    12 SKEIN "skein";
    /// Edon-R 512 behind a prefix made of the pool's salt.
    13 EDONR "edonr";
    /// BLAKE3 keyed with the pool's salt.
    14 BLAKE3 "blake3";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_belong_together() {
        for (n, a) in Compression::ALL.iter().enumerate() {
            assert_eq!(usize::from(a.number()), n);
            assert_eq!(Compression::from_name(a.name().unwrap()), Some(*a));
        }
        for (n, a) in Checksum::ALL.iter().enumerate() {
            assert_eq!(usize::from(a.number()), n);
            assert_eq!(Checksum::from_name(a.name().unwrap()), Some(*a));
        }
        let unknown = Compression::new(17);
        assert_eq!((unknown.name(), unknown.to_string()), (None, "17".into()));
        assert_eq!(
            format!("{:?} {:>5}", Checksum::SKEIN, Compression::LZ4),
            "skein   lz4"
        );
        assert_eq!(Compression::GZIP_9.gzip_level(), Some(9));
        assert_eq!(Compression::ZLE.gzip_level(), None);
    }
}
