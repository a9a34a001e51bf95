//! Tables: columns that align, and fit the terminal.

use std::borrow::Cow;
use std::fmt::Display;

use anstyle::Style;

use super::{BAR, paint, width};

/// How much of a text is left, however narrow the terminal is.
const LEAST_WIDTH: usize = 11;

/// A table with aligned columns. Numbers are set flush right.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

/// A cell of a [`Table`].
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
    rigid: bool,
}

impl Table {
    /// An empty table whose lines start with that many spaces.
    pub(crate) fn new(indent: usize) -> Table {
        Table { rows: Vec::new(), indent }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines. At a terminal, texts that do not fit are cut in the middle, the longest ones first.
    pub(crate) fn render(&self) -> String {
        self.render_within(width())
    }

    fn render_within(&self, limit: Option<usize>) -> String {
        let widths = self.widths(limit.unwrap_or(usize::MAX));
        let mut lines = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, cell) in row.iter().enumerate() {
                let text = elided(&cell.text, widths[column]);
                let padding = " ".repeat(widths[column] - text.chars().count());
                let text = paint(cell.style, &text);
                let last = column + 1 == row.len();
                line += &match (cell.right, last) {
                    (true, _) => format!("{padding}{text}"),
                    (false, true) => text,
                    (false, false) => format!("{text}{padding}"),
                };
                if !last {
                    line += "  ";
                }
            }
            lines += line.trim_end_matches(' ');
            lines += "\n";
        }
        lines
    }

    /// The width of each column, so that lines take no more than `limit` where they can.
    fn widths(&self, limit: usize) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let width = |column: usize| cells(column).map(|cell| cell.text.chars().count()).max();
        let mut widths: Vec<usize> =
            (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        // Numbers and bars mean nothing when they are cut.
        let elastic = |column: usize| cells(column).all(|cell| !cell.rigid);
        let elastic: Vec<usize> = (0..columns).filter(|&column| elastic(column)).collect();
        let taken = self.indent + 2 * columns.saturating_sub(1);
        let mut excess = (taken + widths.iter().sum::<usize>()).saturating_sub(limit);
        while excess > 0 {
            let Some(&longest) = elastic.iter().max_by_key(|&&column| widths[column]) else {
                break;
            };
            if widths[longest] <= LEAST_WIDTH {
                break;
            }
            widths[longest] -= 1;
            excess -= 1;
        }
        widths
    }
}

impl Cell {
    /// Text, flush left.
    pub(crate) fn text(text: impl Display) -> Cell {
        Cell { text: text.to_string(), style: Style::new(), right: false, rigid: false }
    }

    /// Words, flush left, which are not cut: names beside them are.
    pub(crate) fn words(text: impl Display) -> Cell {
        Cell { rigid: true, ..Cell::text(text) }
    }

    /// A number, flush right.
    pub(crate) fn number(text: impl Display) -> Cell {
        Cell { text: text.to_string(), style: Style::new(), right: true, rigid: true }
    }

    /// A bar that fills `share` of `width` characters.
    pub(crate) fn bar(share: f64, width: usize) -> Cell {
        Cell { text: bar(share, width), style: BAR, right: false, rigid: true }
    }

    /// The same in a style.
    pub(crate) fn style(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }
}

/// The text without what is in its middle, where it is longer than `width`: beginnings and ends tell names apart.
fn elided(text: &str, width: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= width {
        return Cow::Borrowed(text);
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept.div_ceil(2), kept / 2);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    Cow::Owned(format!("{start}…{end}"))
}

/// A bar that fills `share` of `width` characters.
fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let partial = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{partial}", "█".repeat(eighths / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_eighths() {
        assert_eq!(bar(1.0, 2), "██");
        assert_eq!(bar(0.5, 2), "█");
        assert_eq!(bar(0.0625, 2), "▏");
        assert_eq!(bar(7.0, 1), "█");
    }

    #[test]
    fn tables_align() {
        let mut table = Table::new(1);
        table.row([Cell::text("a"), Cell::number("1")]);
        table.row([Cell::text("bcd"), Cell::number("20")]);
        assert_eq!(
            anstream::adapter::strip_str(&table.render()).to_string(),
            " a     1\n bcd  20\n"
        );
    }

    #[test]
    fn what_does_not_fit_is_cut_in_the_middle() {
        let mut table = Table::new(2);
        table.row([Cell::text("layers_0_attention_query_linear"), Cell::number("12345678")]);
        table.row([Cell::text("y"), Cell::number("1")]);
        let lines = |limit| anstream::adapter::strip_str(&table.render_within(limit)).to_string();
        let expected = format!("  layers_0_…y_linear  12345678\n  y{}1\n", " ".repeat(26));
        assert_eq!(lines(Some(30)), expected);
        assert_eq!(lines(None).lines().next(), Some("  layers_0_attention_query_linear  12345678"));
        // Numbers are never cut, and names keep enough to be told apart.
        assert_eq!(lines(Some(5)).lines().next(), Some("  layer…inear  12345678"));
    }
}
