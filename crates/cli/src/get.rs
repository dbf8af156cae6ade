//! The table that `zfs get` and `zpool get` print.

use crate::columns::{self, Column};
use crate::harmless::one_line;
use crate::props::Info;
use crate::run::Fail;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Pool or dataset.
    Name,
    /// Name of the property.
    Property,
    /// Its value.
    Value,
    /// The value a receive brought.
    Received,
    /// Where the value comes from.
    Source,
}

/// One property of one object, as text.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Pool or dataset.
    pub name: String,
    /// Name of the property.
    pub property: String,
    /// Its value, as printed.
    pub value: String,
    /// The value a receive brought, or a dash.
    pub received: String,
    /// Where the value comes from, as printed.
    pub source: String,
}

/// Columns asked for with `-o`; `received` tells whether that column exists here.
pub fn fields(text: Option<&str>, received: bool) -> Result<Vec<Field>, Fail> {
    use Field::*;
    let Some(text) = text else {
        return Ok(vec![Name, Property, Value, Source]);
    };
    if text == "all" {
        let mut all = vec![Name, Property, Value, Received, Source];
        if !received {
            all.retain(|f| *f != Received);
        }
        return Ok(all);
    }
    let mut out = Vec::new();
    for word in text.split(',') {
        let field = match word {
            "name" => Name,
            "property" => Property,
            "value" => Value,
            "received" if received => Received,
            "source" => Source,
            "all" => {
                return Err(Fail::Usage(
                    "\"all\" conflicts with specific fields given to -o option".into(),
                ))
            }
            _ => return Err(Fail::Usage(format!("invalid column name '{word}'"))),
        };
        if out.len() == 5 {
            return Err(Fail::Usage("too many fields given to -o option".into()));
        }
        out.push(field);
    }
    Ok(out)
}

/// The table. `asked` are the native properties asked for: the VALUE column is as wide as their
/// widest possible value even if none shows it.
pub fn render(rows: &[Row], fields: &[Field], asked: &[&Info], scripted: bool) -> String {
    let pick = |row: &Row, field: Field| match field {
        Field::Name => row.name.clone(),
        Field::Property => row.property.clone(),
        Field::Value => row.value.clone(),
        Field::Received => row.received.clone(),
        Field::Source => row.source.clone(),
    };
    let mut cols: Vec<Column> = Vec::new();
    for field in fields {
        let mut col = Column::left(match field {
            Field::Name => "NAME",
            Field::Property => "PROPERTY",
            Field::Value => "VALUE",
            Field::Received => "RECEIVED",
            Field::Source => "SOURCE",
        });
        for row in rows {
            col.widen(pick(row, *field).chars().count());
        }
        for info in asked {
            match field {
                Field::Property => col.widen(info.name.len()),
                Field::Value => col.widen(info.width().0),
                _ => {}
            }
        }
        if *field == Field::Value {
            // Features and other properties beside the native ones count with their heading.
            for row in rows.iter().filter(|r| r.property.contains(['@', ':'])) {
                col.widen(row.property.chars().count());
            }
        }
        cols.push(col);
    }
    let mut out = String::new();
    if !scripted {
        out.push_str(&columns::header(&cols));
    }
    for row in rows {
        // Scripts get values as they were set, user properties of several lines too.
        let cell = |f: &Field| match (*f, scripted) {
            (Field::Value | Field::Received, true) => pick(row, *f),
            _ => one_line(&pick(row, *f)),
        };
        let cells: Vec<String> = fields.iter().map(cell).collect();
        out.push_str(&columns::raw_line(&cols, &cells, scripted));
    }
    out
}
