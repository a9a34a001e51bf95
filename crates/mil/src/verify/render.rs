//! Reports inside the text of the program.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;

use super::diagnostic::{Diagnostic, Location, Report, Severity};
use crate::ir::{Binding, Constant, ConstantData, OpId, Program, ValueId};
use crate::text::{self, PrintOptions};

/// How to render a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderOptions {
    /// What the program is called in front of line numbers, a path for instance.
    pub name: String,
    /// Whether to use the colours of terminals.
    pub color: bool,
    /// How many columns a line of the program may take. Programs have lines of megabytes; what does
    /// not fit is cut around the place at fault.
    pub width: usize,
}

impl Default for RenderOptions {
    fn default() -> RenderOptions {
        RenderOptions { name: "program".to_owned(), color: false, width: 100 }
    }
}

impl Report {
    /// The report for people: each diagnostic under the line of the program that it is about, function
    /// by function, and a line with the sum. Lines are counted in the text that
    /// [`text::print`] gives.
    pub fn render(&self, program: &Program, options: &RenderOptions) -> String {
        let listing = Listing::of(self, program);
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
                    let _ = writeln!(out, "{}\n", paint.bold(&heading));
                }
            }
            diagnostic.render(listing.as_ref(), options, paint, &mut out);
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
        listing: Option<&Listing>,
        options: &RenderOptions,
        paint: Paint,
        out: &mut String,
    ) {
        let severity = self.severity();
        let title = format!("{severity}[{}]", self.code);
        // The function stands in the heading.
        let place = Location { function: None, ..self.location.clone() }.to_string();
        let separator = if place.is_empty() { "" } else { ": " };
        let message = format!(": {place}{separator}{}", self.message);
        let _ = writeln!(out, "{}{}", paint.severity(severity, &title), paint.bold(&message));
        if let Some(excerpt) =
            listing.and_then(|listing| listing.excerpt(&self.location, options.width))
        {
            let number = excerpt.line.to_string();
            let margin = " ".repeat(number.len());
            let bar = paint.rule("|");
            let arrow = paint.rule("-->");
            let (name, line, column) = (&options.name, excerpt.line, excerpt.column);
            let indent = " ".repeat(excerpt.mark.start);
            let carets = paint.severity(severity, &"^".repeat(excerpt.mark.len()));
            let _ = writeln!(out, "{margin}{arrow} {name}:{line}:{column}");
            let _ = writeln!(out, "{margin} {bar}");
            let _ = writeln!(out, "{} {bar} {}", paint.rule(&number), excerpt.text);
            let _ = writeln!(out, "{margin} {bar} {indent}{carets}");
        }
        let _ = writeln!(out, "{}: {}", paint.hint("hint"), self.hint);
    }
}

/// The printed program.
struct Listing {
    text: String,
    ops: HashMap<(usize, OpId), Range<usize>>,
    /// Where the line of each function begins.
    functions: Vec<usize>,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// Programs whose text could be longer are not shown: a file can state a long name once and refer to it
/// from everywhere.
const MAX_LISTING_BYTES: usize = 256 << 20;

/// About how long the text of a program can be.
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
        // A byte can hold eight elements of three characters each.
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

/// A line of the program, cut to the width.
#[derive(Debug, PartialEq, Eq)]
struct Excerpt {
    line: usize,
    /// Counted in characters from 1, in the whole line.
    column: usize,
    text: String,
    /// The characters of `text` to mark.
    mark: Range<usize>,
}

impl Listing {
    /// None if nothing in the report needs it, or if the program is too broken to be printed.
    fn of(report: &Report, program: &Program) -> Option<Listing> {
        let located = report.diagnostics.iter().any(|found| found.location.function.is_some());
        if !located || report.is_unprintable || size_of_text(program) > MAX_LISTING_BYTES {
            return None;
        }
        let printed = text::print(program, &PrintOptions::default());
        let ops = printed.ops.into_iter().map(|span| ((span.function, span.op), span.range));
        let newlines = printed.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines: Vec<_> = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        // Strings are printed without line breaks, so nothing else looks like this.
        let is_function = |&at: &usize| printed.text[at..].starts_with("    func ");
        let functions = lines.iter().copied().filter(is_function).collect();
        Some(Listing { ops: ops.collect(), functions, lines, text: printed.text })
    }

    fn excerpt(&self, location: &Location, width: usize) -> Option<Excerpt> {
        let function = location.function.as_ref()?;
        let found = match &location.op {
            Some(op) => {
                let range = self.ops.get(&(function.index, op.id))?.clone();
                let text = &self.text[range.clone()];
                let mark = mark_in_op(text, location);
                range.start + mark.start..range.start + mark.end
            }
            None => {
                let start = *self.functions.get(function.index)?;
                let text = self.text[start..].lines().next()?;
                let mark = mark_in_header(text, location);
                start + mark.start..start + mark.end
            }
        };
        let line = self.lines.partition_point(|&start| start <= found.start);
        let start = self.lines[line - 1];
        let text = self.text[start..].lines().next()?;
        let mark = found.start - start..(found.end - start).min(text.len());
        let column = text[..mark.start].chars().count() + 1;
        let (text, mark) = cut(text, mark, width.saturating_sub(line.to_string().len() + 3));
        Some(Excerpt { line, column, text, mark })
    }
}

/// Fewer columns than this show nothing useful.
const MIN_WIDTH: usize = 24;

/// A line without its indentation, cut to the width around a mark; the mark in characters of it.
fn cut(line: &str, mark: Range<usize>, width: usize) -> (String, Range<usize>) {
    let width = width.max(MIN_WIDTH);
    let indent = (line.len() - line.trim_start().len()).min(mark.start);
    let before = line[indent..mark.start].chars().count();
    let marked = line[mark.clone()].chars().count().max(1);
    let body = &line[indent..];
    let length = body.chars().count();
    if length <= width {
        return (body.to_owned(), before..before + marked);
    }
    // Some of what stands before the mark helps to read it; at the end of the line, as much as fits.
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

/// The part of an operation's text that a location is about.
fn mark_in_op(text: &str, location: &Location) -> Range<usize> {
    let pieces = Pieces::of(text);
    if let Some(parameter) = &location.parameter {
        let named = |range: &&Range<usize>| {
            let piece = &text[(*range).clone()];
            piece.split_once(" = ").is_some_and(|(key, _)| unquoted(key) == parameter)
        };
        if let Some(found) = pieces.arguments.iter().find(named) {
            return found.clone();
        }
    }
    if let Some(value) = &location.value
        && let Some(found) = pieces.outputs.iter().find(|range| names(text, range, &value.name))
    {
        return found.clone();
    }
    pieces.operator
}

/// The part of a function's first line that a location is about.
fn mark_in_header(text: &str, location: &Location) -> Range<usize> {
    let pieces = Pieces::of(text);
    let value = location.value.as_ref().map(|value| value.name.as_str());
    let feature = location.feature.as_ref().map(|feature| feature.name.as_str());
    value
        .or(feature)
        .and_then(|name| pieces.arguments.iter().find(|range| names(text, range, name)).cloned())
        .unwrap_or(pieces.operator)
}

fn names(text: &str, piece: &Range<usize>, name: &str) -> bool {
    let piece = &text[piece.clone()];
    let last = piece.rsplit_once(' ').map_or(piece, |(_, last)| last);
    unquoted(last) == name
}

/// A name without the backticks that odd names stand in.
fn unquoted(name: &str) -> &str {
    name.strip_prefix('`').and_then(|name| name.strip_suffix('`')).unwrap_or(name)
}

/// The parts of an operation's text or of a function's first line, as byte ranges without the blanks
/// around them.
struct Pieces {
    /// `type name`, before the operator.
    outputs: Vec<Range<usize>>,
    /// The word before the first parenthesis.
    operator: Range<usize>,
    /// What stands between the outermost parentheses and brackets, between commas.
    arguments: Vec<Range<usize>>,
}

impl Pieces {
    fn of(text: &str) -> Pieces {
        let mut pieces = Pieces { outputs: Vec::new(), operator: 0..0, arguments: Vec::new() };
        let trimmed = |start: usize, end: usize| {
            let piece = &text[start..end];
            let start = start + piece.len() - piece.trim_start().len();
            start..start + piece.trim().len()
        };
        let mut quote = None;
        let mut escaped = false;
        let mut depth = 0usize;
        let mut start = 0;
        let mut seen_operator = false;
        for (at, byte) in text.bytes().enumerate() {
            if let Some(open) = quote {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    _ if byte == open => quote = None,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' | b'`' => quote = Some(byte),
                b'(' | b'[' if depth == 0 => {
                    if !seen_operator {
                        seen_operator = true;
                        let range = trimmed(start, at);
                        // A function's name stands behind `func`, its opset behind the name.
                        let word =
                            text[range.clone()].rsplit_once(' ').map_or(0, |(l, _)| l.len() + 1);
                        pieces.operator = range.start + word..range.end;
                    }
                    depth = 1;
                    start = at + 1;
                }
                b'(' | b'[' | b'{' | b'<' => depth += 1,
                b')' | b']' | b'}' | b'>' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && byte != b'>' && seen_operator {
                        pieces.arguments.push(trimmed(start, at));
                        start = at + 1;
                    }
                }
                b',' if depth == 1 && seen_operator => {
                    pieces.arguments.push(trimmed(start, at));
                    start = at + 1;
                }
                b',' if depth == 0 && !seen_operator => {
                    pieces.outputs.push(trimmed(start, at));
                    start = at + 1;
                }
                b'=' if depth == 0 && !seen_operator => {
                    pieces.outputs.push(trimmed(start, at));
                    start = at + 1;
                }
                _ => {}
            }
        }
        if !seen_operator {
            pieces.operator = trimmed(start, text.len());
        }
        pieces
    }
}

/// Colours, if they are wanted.
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

    fn shown<'t>(text: &'t str, ranges: &[Range<usize>]) -> Vec<&'t str> {
        ranges.iter().map(|range| &text[range.clone()]).collect()
    }

    #[test]
    fn operations_fall_into_pieces() {
        let text = r#"tensor<fp16, [1, 2]> a, int32 `b, c` = split(x = (p, q), y = string("a, \"(")) [name = string("n")]"#;
        let pieces = Pieces::of(text);
        assert_eq!(shown(text, &pieces.outputs), ["tensor<fp16, [1, 2]> a", "int32 `b, c`"]);
        assert_eq!(&text[pieces.operator.clone()], "split");
        assert_eq!(
            shown(text, &pieces.arguments),
            ["x = (p, q)", r#"y = string("a, \"(")"#, r#"name = string("n")"#]
        );
        let header = "    func main<ios17>(tensor<fp32, [1, ?]> x, fp32 y) {";
        let pieces = Pieces::of(header);
        assert_eq!(&header[pieces.operator.clone()], "main<ios17>");
        assert_eq!(shown(header, &pieces.arguments), ["tensor<fp32, [1, ?]> x", "fp32 y"]);
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let line = format!("    {}MARK{}", "a".repeat(100), "b".repeat(100));
        let (text, mark) = cut(&line, 104..108, 40);
        assert_eq!(text.chars().count(), 40);
        assert!(text.starts_with('…') && text.ends_with('…'));
        let marked: String = text.chars().skip(mark.start).take(mark.len()).collect();
        assert_eq!(marked, "MARK");

        let (text, mark) = cut("    short", 4..9, 40);
        assert_eq!((text.as_str(), mark), ("short", 0..5));

        // A mark longer than the line ends with it.
        let (text, mark) = cut(&line, 4..200, 40);
        assert_eq!((text.chars().count(), mark), (40, 0..40));
        assert!(text.ends_with('…'));
    }
}
