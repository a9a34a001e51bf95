//! Rendering of calls that cannot be lowered, in the style of `check`.

use std::path::Path;

use coremill::convert::{self, Group, Part};
use coremill_compiler::UnsupportedOp;
use coremill_io::escape_truncated;

use crate::output::{ERROR, FAINT, GOOD, STRONG, excerpt_width, paint};

/// Renders all unsupported calls and a total.
pub(in crate::commands) fn render(path: &Path, refused: &[UnsupportedOp]) -> String {
    convert::render_refused(Some(&path.display().to_string()), refused, &coloured)
}

/// Renders the calls with one operator and reason, with their source lines.
pub(in crate::commands) fn render_group(label: &str, group: &Group<'_>) -> String {
    convert::render_group(label, group, &coloured)
}

fn coloured(part: Part, text: &str) -> String {
    let style = match part {
        Part::Error => ERROR,
        Part::Hint => GOOD,
        Part::Code => return paint(STRONG, escape_truncated(text, excerpt_width())),
        Part::Faint => FAINT,
    };
    paint(style, text)
}
