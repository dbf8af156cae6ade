//! Sizes with units (`1.5G`), parsed and printed exactly as OpenZFS's commands do.

/// Formats `n` with base 1024: the unit is the largest whose integer quotient is at least 1; an
/// exact multiple prints without decimals, otherwise the most decimals (2, 1, 0) that keep the text
/// within five characters. `bytes` selects `0B`/`512B` instead of `0`/`512`.
pub fn nice(n: u64, bytes: bool) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut index = 0;
    let mut q = n;
    while q >= 1024 && index < 6 {
        q /= 1024;
        index += 1;
    }
    let unit = if index == 0 && bytes {
        "B"
    } else {
        UNITS[index]
    };
    let scale = 1u64 << (10 * index);
    if index == 0 || n % scale == 0 {
        return format!("{}{unit}", n / scale);
    }
    let v = n as f64 / scale as f64;
    for decimals in [2, 1] {
        let s = format!("{v:.decimals$}{unit}");
        if s.len() <= 5 {
            return s;
        }
    }
    format!("{v:.0}{unit}")
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadSize {
    /// `bad numeric value 'x'`
    Value,
    /// `invalid numeric suffix 'x'`
    Suffix(String),
    /// `numeric value is too large`
    TooLarge,
}

impl BadSize {
    /// Why `text` is none, in the words of the commands.
    pub fn of(&self, text: &str) -> String {
        match self {
            BadSize::Value => format!("bad numeric value '{text}'"),
            BadSize::Suffix(s) => format!("invalid numeric suffix '{s}'"),
            BadSize::TooLarge => "numeric value is too large".to_string(),
        }
    }
}

/// Reads `128K`, `1.5G`, `512`, `10MiB`: base 1024, suffix letter case ignored.
pub fn parse(text: &str) -> Result<u64, BadSize> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (num, suffix) = text.split_at(split);
    if num.is_empty() || num.matches('.').count() > 1 || num == "." {
        return Err(BadSize::Value);
    }
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        "z" | "zb" | "zib" => 70,
        _ => return Err(BadSize::Suffix(suffix.to_string())),
    };
    if num.contains('.') {
        if suffix.is_empty() {
            return Err(BadSize::Value);
        }
        let v: f64 = num.parse().map_err(|_| BadSize::Value)?;
        let v = v * 2f64.powi(shift);
        if v >= u64::MAX as f64 {
            return Err(BadSize::TooLarge);
        }
        return Ok(v as u64);
    }
    let v: u64 = num.parse().map_err(|_| BadSize::TooLarge)?;
    if v == 0 {
        return Ok(0);
    }
    if shift >= 64 || v > u64::MAX >> shift {
        return Err(BadSize::TooLarge);
    }
    Ok(v << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nice_numbers() {
        for (n, s) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (1536, "1.50K"),
            (9999 * 1024 / 1000, "10.0K"),
            (1024 * 1024 - 1, "1024K"),
            (96 << 20, "96M"),
            (16_323_000_000, "15.2G"),
        ] {
            assert_eq!(nice(n, true), s);
        }
        assert_eq!(nice(0, false), "0");
    }

    #[test]
    fn sizes_in() {
        assert_eq!(parse("128K"), Ok(131072));
        assert_eq!(parse("1.5g"), Ok(3 << 29));
        assert_eq!(parse("10MiB"), Ok(10 << 20));
        assert_eq!(parse("12x"), Err(BadSize::Suffix("x".into())));
        assert_eq!(parse("K"), Err(BadSize::Value));
        assert_eq!(parse("99999E"), Err(BadSize::TooLarge));
    }
}
