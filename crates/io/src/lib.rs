//! Files and memory: mapped files, atomic replacement, parallel writes, cancellation, escaping of text in
//! messages, and Base64.
//!
//! | module | holds |
//! |---|---|
//! | [`base64`] | bytes as text |
//! | [`cancel`] | cancellation of work |
//! | `mapped` | [`guard`], [`changed`]: detection of changes to mapped files |
//! | `error` | [`ErrorDetail`]: message, location, hint and source of an error; [`unknown_name`]: messages about unknown names |
//! | `pages` | allocation of pages of new memory |
//! | `shown` | [`shown`], [`printable`]: text out of files in messages and at terminals |
//! | `staged` | [`Temporary`], [`remove_staged_on_signals`]: temporary files, removed on signals |
//! | `windows` | [`for_each_window`], [`share`], [`PositionedWriter`]: parallel writes to a file |

pub mod base64;
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
    ErrorDetail, ErrorKind, HasHint, quoted_choice, quoted_list, unknown_among, unknown_name,
    unsupported_extension,
};
pub use escape::{escape_truncated, is_printable, printable, printable_line};
pub use mapped::{changed, guard, unchanged};
pub use staged::{
    Temporary, create_directories_below, on_signal, remove_staged_on_signals, uninterrupted,
};
pub use windows::{PositionedWriter, copied, fill_windows, for_each_window, share};
