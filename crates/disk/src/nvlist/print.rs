//! Lists as OpenZFS's commands print them (`zstream dump`, `zfs send -nv -t`).

use super::{NvList, Value};
use std::fmt::{Display, Write};

impl NvList {
    /// Prints the list in the form of `nvlist_print`: `name = value`, a tab for each level, numbers without a sign in hexadecimal.
    pub fn print(&self) -> String {
        let mut out = String::new();
        self.print_at(0, &mut out);
        out
    }

    fn print_at(&self, depth: usize, out: &mut String) {
        let pad = "\t".repeat(depth);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{pad}nvlist version: 0");
        for (name, value) in &self.pairs {
            let _ = match value {
                Value::NvList(list) => {
                    let _ = writeln!(out, "{pad}\t{name} = (embedded nvlist)");
                    list.print_at(depth + 1, out);
                    writeln!(out, "{pad}\t(end {name})\n")
                }
                Value::NvListArray(all) => {
                    let _ = writeln!(out, "{pad}\t{name} = (array of embedded nvlists)");
                    for (i, list) in all.iter().enumerate() {
                        let _ = writeln!(out, "{pad}\t(start {name}[{i}])");
                        list.print_at(depth + 1, out);
                        let _ = writeln!(out, "{pad}\t(end {name}[{i}])");
                    }
                    Ok(())
                }
                value => writeln!(out, "{pad}\t{name} = {}", text(value)),
            };
        }
    }
}

fn hex<T: std::fmt::LowerHex>(all: &[T]) -> String {
    join(all.iter().map(|v| format!("{v:#x}")))
}

fn plain<T: Display>(all: &[T]) -> String {
    join(all.iter().map(T::to_string))
}

fn join(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join(" ")
}

/// A value that is no list.
fn text(value: &Value) -> String {
    match value {
        Value::Boolean => "1".into(),
        Value::Byte(v) => format!("0x{v:02x}"),
        Value::Uint8(v) => format!("{v:#x}"),
        Value::Uint16(v) => format!("{v:#x}"),
        Value::Uint32(v) => format!("{v:#x}"),
        Value::Uint64(v) => format!("{v:#x}"),
        Value::HrTime(v) => format!("{v:#x}"),
        Value::Int8(v) => v.to_string(),
        Value::Int16(v) => v.to_string(),
        Value::Int32(v) => v.to_string(),
        Value::Int64(v) => v.to_string(),
        Value::Double(v) => format!("0x{v:.6}"),
        Value::String(s) => s.clone(),
        Value::RawString(s) => String::from_utf8_lossy(s).into_owned(),
        Value::BooleanValue(v) => u8::from(*v).to_string(),
        Value::ByteArray(a) => join(a.iter().map(|v| format!("0x{v:02x}"))),
        Value::Uint8Array(a) => hex(a),
        Value::Uint16Array(a) => hex(a),
        Value::Uint32Array(a) => hex(a),
        Value::Uint64Array(a) => hex(a),
        Value::Int8Array(a) => plain(a),
        Value::Int16Array(a) => plain(a),
        Value::Int32Array(a) => plain(a),
        Value::Int64Array(a) => plain(a),
        Value::StringArray(a) => plain(a),
        Value::BooleanArray(a) => join(a.iter().map(|v| u8::from(*v).to_string())),
        Value::NvList(_) | Value::NvListArray(_) => String::new(),
    }
}
