//! Tables of text: left-justified words, right-justified numbers, two blanks between columns, the
//! last left-justified column unpadded; or tab-separated for scripts.

use crate::harmless::one_line;

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Text of the first line.
    pub heading: String,
    /// Cells end at the right edge.
    pub right: bool,
    /// Characters, at least.
    pub width: usize,
}

impl Column {
    /// A column whose cells begin at the left edge.
    pub fn left(heading: &str) -> Column {
        Column {
            heading: heading.to_string(),
            right: false,
            width: heading.chars().count(),
        }
    }

    /// A column whose cells end at the right edge.
    pub fn right(heading: &str) -> Column {
        Column {
            right: true,
            ..Column::left(heading)
        }
    }

    /// At least that wide.
    pub fn at_least(mut self, width: usize) -> Column {
        self.widen(width);
        self
    }

    /// Makes it at least `width` characters wide.
    pub fn widen(&mut self, width: usize) {
        self.width = self.width.max(width);
    }
}

/// One line of cells, newline included. A cell is [`one_line`].
pub fn line(columns: &[Column], cells: &[String], scripted: bool) -> String {
    let cells: Vec<String> = cells.iter().map(|c| one_line(c)).collect();
    raw_line(columns, &cells, scripted)
}

/// The same of cells as they are.
pub fn raw_line(columns: &[Column], cells: &[String], scripted: bool) -> String {
    let mut out = String::new();
    for (i, cell) in cells.iter().enumerate() {
        let column = columns.get(i);
        if scripted {
            if i > 0 {
                out.push('\t');
            }
            out.push_str(cell);
            continue;
        }
        if i > 0 {
            out.push_str("  ");
        }
        let (right, width) = column.map_or((false, 0), |c| (c.right, c.width));
        if right {
            out.push_str(&format!("{cell:>width$}"));
        } else if i + 1 == cells.len() {
            out.push_str(cell);
        } else {
            out.push_str(&format!("{cell:<width$}"));
        }
    }
    out.push('\n');
    out
}

/// The heading line.
pub fn header(columns: &[Column]) -> String {
    let cells: Vec<String> = columns.iter().map(|c| c.heading.clone()).collect();
    line(columns, &cells, false)
}

/// Rows under their headings, columns as wide as their widest cells. Without headings if `scripted`.
pub fn table(mut columns: Vec<Column>, rows: &[Vec<String>], scripted: bool) -> String {
    for row in rows {
        for (c, cell) in columns.iter_mut().zip(row) {
            c.widen(cell.chars().count());
        }
    }
    let mut out = match scripted {
        true => String::new(),
        false => header(&columns),
    };
    rows.iter()
        .for_each(|row| out += &line(&columns, row, scripted));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding() {
        let columns = [
            Column::left("NAME"),
            Column::right("USED").at_least(5),
            Column::left("MOUNTPOINT"),
        ];
        let cells = ["t".to_string(), "1K".to_string(), "/t".to_string()];
        assert_eq!(header(&columns), "NAME   USED  MOUNTPOINT\n");
        assert_eq!(line(&columns, &cells, false), "t        1K  /t\n");
        assert_eq!(line(&columns, &cells, true), "t\t1K\t/t\n");
        // No cell is another line.
        let forged = ["t\nx\ty".to_string(), String::new(), String::new()];
        assert_eq!(line(&columns, &forged, true), "t\\012x\\011y\t\t\n");
    }
}
