//! The word `draid[P][:Dd][:Cc][:Ss]` of a layout (command reference §6.1, §6.4).

use api::VdevKind;

/// Data devices of a group where none are asked for, if there are enough devices.
const DEFAULT_DATA: usize = 8;
/// Most devices.
const MAX_CHILDREN: usize = 255;
/// Most distributed spares.
const MAX_SPARES: usize = 100;

/// Parity a word asks for; `None` if it is no dRAID group but a device.
pub fn parity(word: &str) -> Option<u8> {
    let rest = word.strip_prefix("draid")?;
    match rest.split(':').next()? {
        "" => Some(1),
        "1" => Some(1),
        "2" => Some(2),
        "3" => Some(3),
        _ => None,
    }
}

/// The group that `word` makes of `children` devices; otherwise a sentence saying what does not fit.
pub fn group(word: &str, children: usize) -> Result<VdevKind, String> {
    let syntax = || {
        Err(format!(
            "invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'"
        ))
    };
    let Some(nparity) = parity(word) else {
        return syntax();
    };
    let parity = usize::from(nparity);
    let (mut data, mut spares) = (None, 0);
    for field in word.split(':').skip(1) {
        let digits = field.trim_end_matches(|c: char| !c.is_ascii_digit());
        let Ok(number) = digits.parse::<usize>() else {
            return syntax();
        };
        match &field[digits.len()..] {
            "c" | "C" if number != children => {
                return Err(format!(
                    "invalid number of dRAID children; {number} required but {children} provided"
                ))
            }
            "c" | "C" => {}
            "d" | "D" => data = Some(number),
            "s" | "S" => spares = number,
            _ => return syntax(),
        }
    }
    if children > MAX_CHILDREN {
        return Err(format!(
            "{children} disks were provided, but dRAID only supports up to {MAX_CHILDREN} disks"
        ));
    }
    let left = children.saturating_sub(spares.saturating_add(parity));
    let data = match data {
        Some(d) => d,
        None if left > 0 => left.min(DEFAULT_DATA),
        None => {
            return Err(format!(
                "requested number of distributed spares {spares} and parity level {parity}\n\
                 leaves no disks available for data"
            ))
        }
    };
    // Whether it is the spares or the group that asks for too much.
    let without = children.saturating_sub(parity);
    if spares > MAX_SPARES || (data > 0 && data <= without && data > left) {
        return Err(format!(
            "invalid number of dRAID spares {spares}; additional disks would be required"
        ));
    }
    if data == 0 || data > left {
        return Err(format!(
            "requested number of dRAID data disks per group {data} is too high,\n\
             at most {left} disks are available for data"
        ));
    }
    Ok(VdevKind::Draid {
        parity: nparity,
        data: data as u8,
        children: children as u8,
        spares: spares as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (word, n, want) in [
            ("draid", 3, Some((1, 2, 3, 0))),
            ("draid", 12, Some((1, 8, 12, 0))),
            ("draid1", 2, Some((1, 1, 2, 0))),
            ("draid2:4d:9c:1s", 9, Some((2, 4, 9, 1))),
            ("draid2:1s:9c:4d", 9, Some((2, 4, 9, 1))),
            ("draid3:2S", 14, Some((3, 8, 14, 2))),
            ("draid3:2s", 10, Some((3, 5, 10, 2))),
            ("draid:8d", 255, Some((1, 8, 255, 0))),
            ("draid:256c", 256, None),
            ("draid2:4d:9c:1s", 8, None),
            ("draid2:0d", 8, None),
            ("draid2:7d", 8, None),
            ("draid2:1d:6s", 8, None),
            ("draid1:1d:101s", 200, None),
            ("draid2:6s", 8, None),
            ("draid2:4", 8, None),
            ("draid2:d", 8, None),
            ("draid2:4x", 8, None),
            ("draid2:4dd", 8, None),
            ("draid2:-4d", 8, None),
            ("draid2:99999999999999999999d", 8, None),
            ("draid2:18446744073709551615s", 8, None),
            ("draid2:", 8, None),
            ("draid2:ä", 8, None),
        ] {
            let got = group(word, n).ok().map(|k| match k {
                VdevKind::Draid {
                    parity,
                    data,
                    children,
                    spares,
                } => (parity, data, children, spares),
                other => panic!("{other:?}"),
            });
            assert_eq!(got, want, "{word} of {n}");
        }
        assert_eq!(
            group("draid2:4d:9c:1s", 8).unwrap_err(),
            "invalid number of dRAID children; 9 required but 8 provided"
        );
        assert_eq!(
            group("draid2:7d", 8).unwrap_err(),
            "requested number of dRAID data disks per group 7 is too high,\n\
             at most 6 disks are available for data"
        );
        assert_eq!(
            group("draid2:6d:1s", 8).unwrap_err(),
            "invalid number of dRAID spares 1; additional disks would be required"
        );
        for (word, want) in [
            ("draid", Some(1)),
            ("draid:4d", Some(1)),
            ("draid3:x", Some(3)),
            ("draid0", None),
            ("draid4", None),
            ("draid1x", None),
            ("draids", None),
            ("sda", None),
        ] {
            assert_eq!(parity(word), want, "{word}");
        }
    }
}
