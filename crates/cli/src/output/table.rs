//! Tables with aligned columns that fit the terminal.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;

use anstyle::Style;
use coremill_io::printable_line;

use super::{BAR, paint, width};

/// Minimum width of truncated text.
const LEAST_WIDTH: usize = 11;

/// A table with aligned columns. Numbers are right-aligned.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

/// A cell of a [`Table`].
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
    fit: Fit,
    keep: Keep,
}

/// Truncation of a column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// Text that may be truncated in the middle.
    Cut,
    /// Names that are truncated last, and stay distinct.
    CutLast,
    /// Numbers, bars and phrases, which are never truncated.
    Never,
}

/// Order in which a narrow terminal hides columns, first to last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Keep {
    /// Diagrams of numbers in other columns.
    Bar,
    /// Details of other columns.
    Minor,
    /// Properties that are not essential.
    Secondary,
    Always,
}

impl Table {
    /// Creates a table whose lines are indented.
    pub(crate) fn new(indent: usize) -> Table {
        Table { rows: Vec::new(), indent }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Formats the table. If the terminal is too narrow, bars and secondary columns are hidden.
    /// Then texts are truncated in the middle, the longest first and names last.
    pub(crate) fn render(&self) -> String {
        self.render_within(width())
    }

    /// Formats the table for a terminal with this number of columns.
    pub(crate) fn render_within(&self, limit: Option<usize>) -> String {
        let layout = self.layout(limit.unwrap_or(usize::MAX));
        let mut lines = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            let shown: Vec<_> =
                row.iter().zip(&layout).filter(|(_, column)| column.shown).collect();
            for (index, (cell, column)) in shown.iter().enumerate() {
                let text = column.cut(&cell.text);
                let padding = " ".repeat(column.width - text.chars().count());
                let text = paint(cell.style, &text);
                let last = index + 1 == shown.len();
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

    /// The layout of each column, within `limit` characters per line if possible.
    fn layout(&self, limit: usize) -> Vec<Column> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut columns: Vec<Column> = (0..count)
            .map(|index| Column::of(self.rows.iter().filter_map(|row| row.get(index))))
            .collect();
        let excess = |columns: &[Column]| {
            let widths =
                columns.iter().filter(|column| column.shown).map(|column| column.width + 2);
            (self.indent + widths.sum::<usize>()).saturating_sub(limit.saturating_add(2))
        };
        for keep in [Keep::Bar, Keep::Minor, Keep::Secondary] {
            for index in (0..count).rev().filter(|&index| self.keep(index) == keep) {
                if excess(&columns) > 0 {
                    columns[index].shown = false;
                }
            }
        }
        for fit in [Fit::Cut, Fit::CutLast] {
            while excess(&columns) > 0 {
                let widest = columns.iter_mut().filter(|column| column.shown && column.fit == fit);
                let Some(widest) = widest.max_by_key(|column| column.width) else { break };
                if widest.width <= LEAST_WIDTH {
                    break;
                }
                widest.width -= 1;
            }
        }
        for (index, column) in columns.iter_mut().enumerate() {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            column.check_output_paths(cells.map(|cell| &*cell.text));
        }
        columns
    }

    /// When to hide a column. A single cell determines it, so that headers need not.
    fn keep(&self, index: usize) -> Keep {
        let cells = self.rows.iter().filter_map(|row| row.get(index));
        cells.map(|cell| cell.keep).min().unwrap_or(Keep::Always)
    }
}

/// Layout of a column.
struct Column {
    width: usize,
    shown: bool,
    fit: Fit,
    /// Number of characters before the ellipsis of truncated text.
    head: usize,
}

impl Column {
    fn of<'c>(cells: impl Iterator<Item = &'c Cell>) -> Column {
        let mut column = Column { width: 0, shown: true, fit: Fit::Cut, head: 0 };
        for cell in cells {
            column.width = column.width.max(cell.text.chars().count());
            column.fit = column.fit.max(cell.fit);
        }
        column
    }

    /// Chooses where names are truncated: in the middle, unless more names stay distinct elsewhere.
    fn check_output_paths<'t>(&mut self, texts: impl Iterator<Item = &'t str>) {
        let kept = self.width.saturating_sub(1);
        self.head = kept.div_ceil(2);
        if self.fit != Fit::CutLast {
            return;
        }
        let long: HashSet<&str> = texts.filter(|text| text.chars().count() > self.width).collect();
        let different = |head: usize| {
            let cut = long.iter().map(|text| elided(text, self.width, head));
            cut.collect::<HashSet<_>>().len()
        };
        let mut most = different(self.head);
        for head in 0..=kept {
            if most == long.len() {
                break;
            }
            let found = different(head);
            if found > most {
                (self.head, most) = (head, found);
            }
        }
    }

    fn cut<'t>(&self, text: &'t str) -> Cow<'t, str> {
        elided(text, self.width, self.head)
    }
}

impl Cell {
    /// Left-aligned text.
    pub(crate) fn text(text: impl Display) -> Cell {
        let text = printable_line(&text.to_string()).into_owned();
        Cell { text, style: Style::new(), right: false, fit: Fit::Cut, keep: Keep::Always }
    }

    /// A left-aligned name that identifies the row.
    pub(crate) fn name(text: impl Display) -> Cell {
        Cell { fit: Fit::CutLast, ..Cell::text(text) }
    }

    /// Left-aligned words that are never truncated.
    pub(crate) fn words(text: impl Display) -> Cell {
        Cell { fit: Fit::Never, ..Cell::text(text) }
    }

    /// A right-aligned number.
    pub(crate) fn number(text: impl Display) -> Cell {
        Cell { right: true, ..Cell::words(text) }
    }

    /// A bar that fills `share` of `width` characters.
    pub(crate) fn bar(share: f64, width: usize) -> Cell {
        Cell { style: BAR, keep: Keep::Bar, ..Cell::words(bar(share, width)) }
    }

    /// Sets the style.
    pub(crate) fn style(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }

    /// Marks the column as hideable on narrow terminals, such as a shape or type.
    pub(crate) fn secondary(mut self) -> Cell {
        self.keep = Keep::Secondary;
        self
    }

    /// Marks the column as hidden before secondary ones.
    pub(crate) fn minor(mut self) -> Cell {
        self.keep = Keep::Minor;
        self
    }
}

/// Replaces the middle of a text longer than `width` by an ellipsis, after `head` characters.
fn elided(text: &str, width: usize, head: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= width {
        return Cow::Borrowed(text);
    }
    let tail = width.saturating_sub(1 + head);
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
    fn bars_render_in_eighth_blocks() {
        assert_eq!(bar(1.0, 2), "██");
        assert_eq!(bar(0.5, 2), "█");
        assert_eq!(bar(0.0625, 2), "▏");
        assert_eq!(bar(7.0, 1), "█");
    }

    #[test]
    fn columns_align_text_left_and_numbers_right() {
        let mut table = Table::new(1);
        table.row([Cell::text("a"), Cell::number("1")]);
        table.row([Cell::text("bcd"), Cell::number("20")]);
        assert_eq!(
            anstream::adapter::strip_str(&table.render()).to_string(),
            " a     1\n bcd  20\n"
        );
    }

    #[test]
    fn long_names_are_truncated_in_middle() {
        let mut table = Table::new(2);
        table.row([Cell::text("layers_0_attention_query_linear"), Cell::number("12345678")]);
        table.row([Cell::text("y"), Cell::number("1")]);
        let lines = |limit: Option<usize>| {
            anstream::adapter::strip_str(&table.render_within(limit)).to_string()
        };
        let expected = format!("  layers_0_…y_linear  12345678\n  y{}1\n", " ".repeat(26));
        assert_eq!(lines(Some(30)), expected);
        assert_eq!(lines(None).lines().next(), Some("  layers_0_attention_query_linear  12345678"));
        // Numbers are never truncated, and names stay distinct.
        assert_eq!(lines(Some(5)).lines().next(), Some("  layer…inear  12345678"));
    }

    /// A table like `compare --per-op`, with names that differ in the middle.
    fn values() -> Table {
        let mut table = Table::new(2);
        let heads = ["value", "op", "shape", "max abs", "SNR", "", ""];
        table.row(heads.map(Cell::text));
        for layer in 0..3 {
            table.row([
                Cell::name(format!("features_{layer}_denselayer_1_batch_norm")),
                Cell::text("batch_norm").secondary(),
                Cell::text("[1, 256, 56, 56]").secondary(),
                Cell::number("1.23e-3"),
                Cell::number("58.3 dB"),
                Cell::bar(0.5, 16),
                Cell::words(if layer == 1 { "← drift begins" } else { "" }),
            ]);
        }
        table
    }

    #[test]
    fn narrow_tables_drop_columns_before_truncating_names() {
        let lines = |limit: usize| {
            let text = values().render_within(Some(limit));
            let text = anstream::adapter::strip_str(&text).to_string();
            assert!(text.lines().all(|line| line.chars().count() <= limit), "{limit}:\n{text}");
            text
        };
        let (wide, usual, narrow) = (lines(120), lines(80), lines(60));
        for text in [&wide, &usual, &narrow] {
            assert!(text.contains("← drift begins") && text.contains("58.3 dB"), "{text}");
        }
        assert!(
            wide.contains("[1, 256, 56, 56]")
                && wide.contains("features_0_denselayer_1_batch_norm")
        );
        assert!(wide.contains('█') && !usual.contains('█'), "{usual}");
        assert!(usual.contains("features_2_denselayer_1_batch_norm"), "{usual}");
        assert!(!usual.contains("[1, 256"), "{usual}");
        // Truncated, but not to the same text in every row.
        let names: HashSet<&str> =
            narrow.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names.len(), 4, "{narrow}");
        assert_eq!(values().render_within(None).lines().count(), 4);
    }

    #[test]
    fn truncated_names_stay_distinct_and_printable() {
        let mut table = Table::new(0);
        for (block, part) in [(10, "q_norm"), (10, "k_norm"), (11, "q_norm")] {
            table.row([Cell::name(format!("layers_{block}_attention_{part}_weight_to_fp16"))]);
        }
        let text = table.render_within(Some(32));
        let cut: HashSet<&str> = text.lines().collect();
        assert_eq!(cut.len(), 3, "{text}");
        // Control characters must not break the layout.
        let mut table = Table::new(0);
        table.row([Cell::text("a\nb\u{1b}[2J\u{202e}"), Cell::number("1")]);
        assert_eq!(table.render_within(None), "a b\u{fffd}[2J\u{fffd}  1\n");
    }
}
