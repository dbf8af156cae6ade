//! Values of properties as their ZAPs have them (data format §14).

use base::Result;
use dmu::Dnode;
use std::collections::BTreeMap;
use std::sync::Arc;
use zap::{Value, Zap};

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropValue {
    /// Numbers and indexes.
    Int(u64),
    /// Text.
    Str(String),
}

impl std::fmt::Display for PropValue {
    /// As in the history: numbers as they are stored.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PropValue::Int(n) => write!(f, "{}", *n as i64),
            PropValue::Str(s) => f.write_str(s),
        }
    }
}

impl PropValue {
    /// The number; `None` for a text.
    pub fn int(&self) -> Option<u64> {
        match self {
            PropValue::Int(n) => Some(*n),
            PropValue::Str(_) => None,
        }
    }

    /// The text; `None` for a number.
    pub fn text(&self) -> Option<&str> {
        match self {
            PropValue::Int(_) => None,
            PropValue::Str(s) => Some(s),
        }
    }

    pub(crate) fn to_zap(&self) -> Value {
        match self {
            PropValue::Int(n) => Value::u64(*n),
            PropValue::Str(s) => Value::string(s),
        }
    }

    fn from_zap(v: &Value) -> Result<PropValue> {
        match v.as_u64() {
            Some(n) => Ok(PropValue::Int(n)),
            None => v.to_text().map(PropValue::Str),
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropSource {
    /// At the dataset itself.
    Local,
    /// Came with a stream, and nothing else was set.
    Received,
    /// Full name of the dataset that has it.
    Inherited(String),
}

/// Entries of one property ZAP, with their suffixes.
pub(crate) type OwnProps = BTreeMap<String, PropValue>;

pub(crate) const RECVD: &str = "$recvd";
pub(crate) const INHERIT: &str = "$inherit";
pub(crate) const IUV: &str = "$iuv";
pub(crate) const HAS_RECVD: &str = "$hasrecvd";

pub(crate) fn load(dn: &Arc<Dnode>) -> Result<OwnProps> {
    let mut out = OwnProps::new();
    for e in Zap::new(dn).iter() {
        let e = e?;
        out.insert(e.text(), PropValue::from_zap(&e.value)?);
    }
    Ok(out)
}

/// The value a ZAP itself gives a property.
pub(crate) fn own_value(p: &OwnProps, name: &str) -> Option<(PropValue, PropSource)> {
    if let Some(v) = p.get(&format!("{name}{IUV}")).or_else(|| p.get(name)) {
        return Some((v.clone(), PropSource::Local));
    }
    if p.contains_key(&format!("{name}{INHERIT}")) {
        return None;
    }
    let v = p.get(&format!("{name}{RECVD}"))?;
    Some((v.clone(), PropSource::Received))
}
