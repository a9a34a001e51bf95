//! Files and memory as every crate uses them: mapped files, atomic replacement, windows of bytes on their way to a file,
//! cancellation, and text from files in messages.
//!
//! | module | holds |
//! |---|---|
//! | [`cancel`] | how work is stopped that somebody no longer wants |
//! | `mapped` | [`guard`], [`changed`]: files that change while they are mapped |
//! | `error` | [`ErrorDetail`]: the message, location, hint and source of an error; [`unknown_name`]: messages about names that do not exist |
//! | `pages` | the pages of new memory |
//! | `shown` | [`shown`], [`printable`]: text out of files in messages and at terminals |
//! | `staged` | [`Temporary`], [`remove_staged_on_signals`]: files beside an output that signals must not leave behind |
//! | `windows` | [`for_each_window`], [`share`], [`PositionedWriter`]: bytes on their way into a file, on several threads |

pub mod cancel;
mod destination;
mod error;
mod escape;
pub mod mapped;
pub mod pages;
mod room;
pub mod staged;
pub mod windows;

pub use destination::{AtomicDirectory, is_stream, write_anew};
pub use error::{
    ErrorDetail, quoted_choice, quoted_list, unknown_among, unknown_name, unsupported_extension,
};
pub use escape::{escape_truncated, is_printable, printable, printable_line};
pub use mapped::{changed, guard, unchanged};
pub use staged::{Temporary, remove_staged_on_signals, uninterrupted};
pub use windows::{PositionedWriter, copied, fill_windows, for_each_window, share};
