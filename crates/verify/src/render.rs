//! Renders reports with lines of the program's text.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

use coremill_io::{is_printable, printable, printable_line};
use coremill_mil::ir::{Binding, Constant, ConstantData, OpId, Program, ValueId};
use coremill_mil::text::pieces::{Piece, StatementParts, first_line};
use coremill_mil::text::{self, Listing, PrintOptions};

use super::diagnostic::{Diagnostic, Location, Report};
use super::severity::Severity;

/// Options for rendering a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// Name of the text, printed before line numbers, for instance a path.
    pub name: String,
    /// Whether to use terminal colors.
    pub color: bool,
    /// Maximum width of a line in columns. Programs have lines of megabytes, which are cut around the error.
    pub width: usize,
}

impl Default for RenderOptions {
    fn default() -> RenderOptions {
        RenderOptions { name: "program".to_owned(), color: false, width: 100 }
    }
}

impl Report {
    /// Renders the report for users: the diagnostics of each function with the line of the program, and a
    /// summary. Lines come from [`text::print`]; [`Report::render_in`] shows lines of another text.
    pub fn render(&self, program: &Program, options: &RenderOptions) -> String {
        let located = self.diagnostics.iter().any(|found| found.location.function.is_some());
        let shown = located && !self.is_unprintable && size_of_text(program) <= MAX_PRINTED_BYTES;
        let listing = shown.then(|| text::print(program, &PrintOptions::default()));
        self.render_lines(listing.as_ref(), options)
    }

    /// Renders the report like [`Report::render`], but with the lines of the text from which the program was
    /// read: see [`text::parse_with_spans`].
    pub fn render_in(&self, listing: &Listing, options: &RenderOptions) -> String {
        self.render_lines(Some(listing), options)
    }

    fn render_lines(&self, listing: Option<&Listing>, options: &RenderOptions) -> String {
        let mut lines = listing.map(Lines::of);
        let mut out = String::new();
        let paint = Paint { color: options.color };
        let mut group = None;
        for diagnostic in &self.diagnostics {
            let function = diagnostic.location.function.as_ref();
            let index = function.map(|function| function.index);
            if index != group {
                group = index;
                if let Some(function) = function {
                    let heading = format!("function `{}`:", function.name);
                    let _ = writeln!(out, "{}\n", paint.bold(&printable_line(&heading)));
                }
            }
            diagnostic.render(lines.as_mut(), options, paint, &mut out);
            out.push('\n');
        }
        for (omitted, what) in [(self.omitted_errors, "error"), (self.omitted_warnings, "warning")]
        {
            if omitted > 0 {
                let plural = if omitted == 1 { "" } else { "s" };
                let _ = writeln!(out, "and {omitted} more {what}{plural}");
            }
        }
        let _ = writeln!(out, "{}", paint.bold(&self.summary()));
        out
    }
}

impl Diagnostic {
    fn render(
        &self,
        lines: Option<&mut Lines<'_>>,
        options: &RenderOptions,
        paint: Paint,
        out: &mut String,
    ) {
        let severity = self.severity();
        let title = format!("{severity}[{}]", self.code);
        // The heading contains the function.
        let place = Location { function: None, ..self.location.clone() }.to_string();
        let separator = if place.is_empty() { "" } else { ": " };
        let message = format!(": {place}{separator}{}", self.message);
        let _ = writeln!(
            out,
            "{}{}",
            paint.severity(severity, &title),
            paint.bold(&printable(&message))
        );
        if let Some(excerpt) = lines.and_then(|lines| lines.excerpt(&self.location, options.width))
        {
            let number = excerpt.line.to_string();
            let margin = " ".repeat(number.len());
            let bar = paint.rule("|");
            let arrow = paint.rule("-->");
            let name = printable_line(&options.name);
            let (line, column) = (excerpt.line, excerpt.column);
            let indent = " ".repeat(excerpt.mark.start);
            let carets = paint.severity(severity, &"^".repeat(excerpt.mark.len()));
            let _ = writeln!(out, "{margin}{arrow} {name}:{line}:{column}");
            let _ = writeln!(out, "{margin} {bar}");
            let _ = writeln!(out, "{} {bar} {}", paint.rule(&number), excerpt.text);
            let _ = writeln!(out, "{margin} {bar} {indent}{carets}");
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(out, "{}: {}", paint.hint("hint"), printable(hint));
        }
    }
}

/// A listing with a cache of the last line and statement. Locations are mostly looked up in order, lines and
/// statements can have megabytes, and hundreds of diagnostics may refer to the same one.
struct Lines<'l> {
    listing: &'l Listing,
    ops: HashMap<(usize, OpId), Range<usize>>,
    place: Place,
    /// Range and parts of the last statement.
    statement: (Range<usize>, StatementParts<'l>),
}

/// A position in a text.
#[derive(Clone, Debug)]
struct Place {
    offset: usize,
    /// Starts at 1.
    line: usize,
    /// In characters, starting at 1.
    column: usize,
    /// Byte range of the line.
    range: Range<usize>,
}

/// Maximum size of a printed program. A file can contain a long name once and refer to it from everywhere.
const MAX_PRINTED_BYTES: usize = 256 << 20;

/// Estimated maximum length of a program's text.
fn size_of_text(program: &Program) -> usize {
    let mut size = 0usize;
    for function in &program.functions {
        let name = |&value: &ValueId| function.value(value).name.len() + 32;
        for (block, _) in function.blocks_in_order() {
            let block = function.block(block);
            size = size.saturating_add(block.inputs.iter().chain(&block.outputs).map(name).sum());
        }
        for (_, op) in function.all_ops() {
            size = size.saturating_add(64 + op.outputs.iter().map(name).sum::<usize>());
            for (_, binding) in op.all_bindings() {
                size = size.saturating_add(match binding {
                    Binding::Value(value) => name(value),
                    Binding::Literal(constant) => size_of_constant(constant),
                });
            }
            for (_, constant) in op.attributes.iter() {
                size = size.saturating_add(size_of_constant(constant));
            }
        }
    }
    size
}

fn size_of_constant(constant: &Constant) -> usize {
    match &constant.data {
        // A byte can contain eight elements of three characters each.
        ConstantData::Bytes(bytes) => bytes.len().saturating_mul(24),
        ConstantData::Strings(strings) => strings.iter().map(|text| text.len() + 4).sum(),
        ConstantData::Weight(_) => 128,
        ConstantData::Sequence(parts) => parts.iter().map(size_of_constant).sum(),
        ConstantData::Entries(entries) => entries
            .iter()
            .map(|(key, value)| size_of_constant(key).saturating_add(size_of_constant(value)))
            .sum(),
    }
}

/// A line of the text, cut to the maximum width.
#[derive(Debug, PartialEq, Eq)]
struct Excerpt {
    line: usize,
    /// In characters of the whole line, starting at 1.
    column: usize,
    text: String,
    /// Characters of `text` to mark.
    mark: Range<usize>,
}

impl<'l> Lines<'l> {
    fn of(listing: &'l Listing) -> Lines<'l> {
        let spans = listing.spans.ops.iter();
        let ops = spans.map(|span| ((span.function, span.op), span.range.clone())).collect();
        let first = listing.text.find('\n').unwrap_or(listing.text.len());
        let place = Place { offset: 0, line: 1, column: 1, range: 0..first };
        Lines { listing, ops, place, statement: (0..0, StatementParts::default()) }
    }

    fn excerpt(&mut self, location: &Location, width: usize) -> Option<Excerpt> {
        let function = location.function.as_ref()?;
        let range = match &location.op {
            Some(op) => self.ops.get(&(function.index, op.id))?,
            None => self.listing.spans.functions.get(function.index)?,
        };
        let text = self.listing.text.get(range.clone())?;
        if self.statement.0 != *range {
            self.statement = (range.clone(), StatementParts::of(text));
        }
        let pieces = &self.statement.1;
        let mark = match &location.op {
            Some(_) => mark_in_op(pieces, location),
            None => mark_in_header(pieces, location),
        };
        // A statement may span several lines; show the line where the mark starts.
        let marked = first_line(&text[mark.clone()]);
        self.go_to(range.start + mark.start);
        let Place { offset, line: number, column, range } = self.place.clone();
        let line = self.listing.text[range.clone()].trim_end();
        let start = offset - range.start;
        let mark = start.min(line.len())..(start + marked).min(line.len());
        let (text, mark) = cut(line, mark, width.saturating_sub(number.to_string().len() + 3));
        // Tabs would shift the mark, and terminals interpret other control characters. Each is replaced by
        // one space.
        let text = text.replace(|c| !is_printable(c), " ");
        Some(Excerpt { line: number, column, text, mark })
    }

    /// Moves `place` to a byte offset, which must be a character boundary.
    fn go_to(&mut self, offset: usize) {
        let text = &self.listing.text;
        let last = &self.place;
        let passed = &text[offset.min(last.offset)..offset.max(last.offset)];
        let lines = passed.bytes().filter(|&byte| byte == b'\n').count();
        let is_forward = offset >= last.offset;
        let moved = |from: usize, by: usize| if is_forward { from + by } else { from - by };
        let line = moved(last.line, lines);
        self.place = if lines == 0 {
            let column = moved(last.column, passed.chars().count());
            Place { offset, line, column, range: last.range.clone() }
        } else {
            let start = text[..offset].rfind('\n').map_or(0, |at| at + 1);
            let end = text[offset..].find('\n').map_or(text.len(), |length| offset + length);
            Place {
                offset,
                line,
                column: text[start..offset].chars().count() + 1,
                range: start..end,
            }
        };
    }
}

/// Minimum width; less is not useful.
const MIN_WIDTH: usize = 24;

/// Removes a line's indentation and cuts it to the width around a mark. Returns the line and the mark in
/// characters.
fn cut(line: &str, mark: Range<usize>, width: usize) -> (String, Range<usize>) {
    let width = width.max(MIN_WIDTH);
    let indent = (line.len() - line.trim_start().len()).min(mark.start);
    // Examine only as much of the line as can be shown, since it may have megabytes. A character has up to
    // four bytes.
    let reach = 4 * (width + 1);
    let (mut from, mut to) = (mark.start.saturating_sub(reach), mark.start + 2 * reach);
    while !line.is_char_boundary(from) {
        from -= 1;
    }
    while to < line.len() && !line.is_char_boundary(to) {
        to += 1;
    }
    let (from, to) = (from.max(indent), to.min(line.len()));
    let body = &line[from..to];
    let before = line[from..mark.start].chars().count();
    let marked = line[mark.start..mark.end.min(to)].chars().count().max(1);
    let length = body.chars().count();
    if length <= width {
        return (body.to_owned(), before..before + marked);
    }
    // Show some text before the mark as context; at the end of the line, as much as fits.
    let fits = before + marked < width;
    let skipped = if fits { 0 } else { before.saturating_sub(width / 4).min(length - width) };
    let mut shown: Vec<char> = body.chars().skip(skipped).take(width).collect();
    if skipped + width < length {
        shown[width - 1] = '…';
    }
    if skipped > 0 {
        shown[0] = '…';
    }
    let start = before - skipped;
    let end = (start + marked).min(shown.len()).max(start + 1);
    (shown.into_iter().collect(), start..end)
}

/// The part of an operation's text that a location refers to.
fn mark_in_op(pieces: &StatementParts<'_>, location: &Location) -> Range<usize> {
    let parameter = location.parameter.as_ref();
    let argument = parameter.and_then(|name| pieces.arguments.iter().find(|p| p.binds(name)));
    let value = location.value.as_ref().map(|value| value.name.as_str());
    let output = || value.and_then(|name| declaration(&pieces.outputs, name));
    argument.or_else(output).map_or(pieces.operator.clone(), |piece| piece.range.clone())
}

/// The part of a function's header that a location refers to.
fn mark_in_header(pieces: &StatementParts<'_>, location: &Location) -> Range<usize> {
    let value = location.value.as_ref().map(|value| value.name.as_str());
    let feature = location.feature.as_ref().map(|feature| feature.name.as_str());
    let input = value.or(feature).and_then(|name| declaration(&pieces.arguments, name));
    input.map_or(pieces.operator.clone(), |piece| piece.range.clone())
}

fn declaration<'p, 't>(pieces: &'p [Piece<'t>], name: &str) -> Option<&'p Piece<'t>> {
    pieces.iter().find(|piece| piece.declares(name))
}

/// Applies colors, if enabled.
#[derive(Clone, Copy)]
struct Paint {
    color: bool,
}

impl Paint {
    fn with(self, style: &str, text: &str) -> String {
        if self.color { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn severity(self, severity: Severity, text: &str) -> String {
        match severity {
            Severity::Error => self.with("1;31", text),
            Severity::Warning => self.with("1;33", text),
        }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn rule(self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn hint(self, text: &str) -> String {
        self.with("1;36", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_long_lines_around_mark() {
        let line = format!("    {}MARK{}", "a".repeat(100), "b".repeat(100));
        let (text, mark) = cut(&line, 104..108, 40);
        assert_eq!(text.chars().count(), 40);
        assert!(text.starts_with('…') && text.ends_with('…'));
        let marked: String = text.chars().skip(mark.start).take(mark.len()).collect();
        assert_eq!(marked, "MARK");

        let (text, mark) = cut("    short", 4..9, 40);
        assert_eq!((text.as_str(), mark), ("short", 0..5));

        // Distant text does not change the result.
        let long = format!("{}ö{}", "ä".repeat(100_000), "ü".repeat(100_000));
        assert_eq!(cut(&long, 200_000..200_002, 40), cut(&long[199_000..201_002], 1000..1002, 40));

        // A mark that is longer than the line is cut at the end of the line.
        let (text, mark) = cut(&line, 4..200, 40);
        assert_eq!((text.chars().count(), mark), (40, 0..40));
        assert!(text.ends_with('…'));
    }

    #[test]
    fn finds_lines_and_columns_forward_and_backward() {
        let text = "a\n\n\tbö c\nd";
        let listing = Listing { text: text.to_owned(), ..Listing::default() };
        let mut lines = Lines::of(&listing);
        let mut place = |offset| {
            lines.go_to(offset);
            (lines.place.line, lines.place.column, lines.place.range.clone())
        };
        for _ in 0..2 {
            assert_eq!(place(text.len() - 1), (4, 1, 10..11));
            assert_eq!(place(8), (3, 5, 3..9));
            assert_eq!(place(4), (3, 2, 3..9));
            assert_eq!(place(8), (3, 5, 3..9));
            assert_eq!(place(0), (1, 1, 0..1));
            assert_eq!(place(2), (2, 1, 2..2));
        }
    }
}
