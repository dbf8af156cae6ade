//! Medians, spread, geometric means.

/// The middle of the values; the mean of the two middle ones if their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(v[n / 2]),
        _ => Some((v[n / 2 - 1] + v[n / 2]) / 2.0),
    }
}

/// Half the distance of the extremes as a share of the median: 0.05 reads "± 5 %".
pub fn spread(values: &[f64]) -> Option<f64> {
    let m = median(values)?;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (m != 0.0).then(|| (high - low) / 2.0 / m.abs())
}

/// The value below which this share of a sorted list lies.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = (last as f64 * share.clamp(0.0, 1.0)).round() as usize;
    sorted.get(at).copied()
}

/// Geometric mean of the positive values; none if there is none.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: Vec<f64> = values
        .iter()
        .filter(|v| v.is_finite() && **v > 0.0)
        .map(|v| v.ln())
        .collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::NAN, 7.0]), Some(7.0));
    }

    #[test]
    fn spreads() {
        assert_eq!(spread(&[10.0]), Some(0.0));
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.15));
        assert_eq!(spread(&[0.0, 0.0]), None);
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn geometric() {
        let g = geometric_mean(&[0.5, 2.0, 8.0]).unwrap();
        assert!((g - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[0.0]), None);
        let g = geometric_mean(&[4.0, 0.0, f64::INFINITY]).unwrap();
        assert!((g - 4.0).abs() < 1e-12);
    }

    #[test]
    fn quantiles() {
        let v: Vec<f64> = (0..101).map(f64::from).collect();
        assert_eq!(quantile(&v, 0.99), Some(99.0));
        assert_eq!(quantile(&v, 0.0), Some(0.0));
        assert_eq!(quantile(&v, 2.0), Some(100.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
