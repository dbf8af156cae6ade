//! Prints raw values of properties as text.

use crate::props::{dataset_form, pool_form, vdev_form, Form};
use crate::time;
use api::{Source, Value};
use base::sizes::nice;
use tz::TimeZone;

/// Text of a value; `exact` is `-p`.
pub fn show(form: Form, value: &Value, exact: bool, zone: &TimeZone) -> String {
    let n = match value {
        Value::None => return "-".into(),
        Value::Text(t) => return t.clone(),
        Value::Number(n) => *n,
    };
    match form {
        Form::Limit if n == u64::MAX => "none".into(),
        Form::PoolVersion if n >= 5000 => "-".into(),
        Form::SizeOrDash | Form::BytesOrDash if n == 0 => "-".into(),
        Form::Ratio if exact => format!("{}.{:02}", n / 100, n % 100),
        Form::Ratio => format!("{}.{:02}x", n / 100, n % 100),
        _ if exact => n.to_string(),
        Form::BytesOrNone | Form::SizeOrNone if n == 0 => "none".into(),
        Form::Bytes | Form::BytesOrNone | Form::BytesOrDash => nice(n, true),
        Form::Size | Form::SizeOrNone | Form::SizeOrDash => nice(n, false),
        Form::Percent => format!("{n}%"),
        Form::Date => time::creation(n, zone),
        Form::DateSeconds => time::ctime(n, zone),
        Form::Text | Form::Word | Form::Plain | Form::Limit | Form::PoolVersion => n.to_string(),
    }
}

/// Text of a dataset property.
pub fn dataset(name: &str, value: &Value, exact: bool, zone: &TimeZone) -> String {
    show(dataset_form(name), value, exact, zone)
}

/// Text of a pool property.
pub fn pool(name: &str, value: &Value, exact: bool, zone: &TimeZone) -> String {
    show(pool_form(name), value, exact, zone)
}

/// Text of a property of a vdev.
pub fn vdev(name: &str, value: &Value, exact: bool, zone: &TimeZone) -> String {
    match (vdev_form(name), value) {
        // OpenZFS shows no number where the threshold is not set.
        (Form::Limit, Value::Number(u64::MAX)) => "-".into(),
        (form, value) => show(form, value, exact, zone),
    }
}

/// The word or sentence of the SOURCE column.
pub fn source(source: &Source) -> String {
    match source {
        Source::None => "-".into(),
        Source::Default => "default".into(),
        Source::Local => "local".into(),
        Source::Temporary => "temporary".into(),
        Source::Received => "received".into(),
        Source::Inherited(from) => format!("inherited from {from}"),
    }
}

/// Type and data of a source in JSON.
pub fn source_json(source: &Source) -> (&'static str, &str) {
    match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Received => ("RECEIVED", "-"),
        Source::Inherited(from) => ("INHERITED", from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let z = TimeZone::utc();
        let d = |name: &str, n: u64| {
            let v = Value::Number(n);
            (dataset(name, &v, false, &z), dataset(name, &v, true, &z))
        };
        let both = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(d("used", 0), both("0B", "0"));
        assert_eq!(d("used", 1536), both("1.50K", "1536"));
        assert_eq!(d("recordsize", 131072), both("128K", "131072"));
        assert_eq!(d("written", 0), both("0", "0"));
        assert_eq!(d("quota", 0), both("none", "0"));
        assert_eq!(d("compressratio", 106), both("1.06x", "1.06"));
        assert_eq!(d("snapshot_limit", u64::MAX), both("none", "none"));
        assert_eq!(
            d("guid", 1 << 60),
            both("1152921504606846976", "1152921504606846976")
        );
        assert_eq!(d("creation", 60), both("Thu Jan  1  0:01 1970", "60"));
        assert_eq!(d("userquota@x", 0), both("none", "0"));
        assert_eq!(dataset("origin", &Value::None, true, &z), "-");
        let p = |name: &str, n: u64, exact| pool(name, &Value::Number(n), exact, &z);
        assert_eq!(p("version", 5000, false), "-");
        assert_eq!(p("version", 28, false), "28");
        assert_eq!(p("capacity", 45, false), "45%");
        assert_eq!(p("capacity", 45, true), "45");
        assert_eq!(p("expandsize", 0, true), "-");
        assert_eq!(p("checkpoint", 100, false), "100B");
    }
}
