//! Output files of a run: arrays in numpy's formats, and images as PNG files.

use std::io::{BufWriter, Write};
use std::path::{Component, Path};

use coremill_session::{Array, FeatureSpec, Outputs, arrays, images};

use super::outputs::{self, Entry};
use crate::inputs::failure;
use crate::output::{Failure, OutputPath};

/// Writes the outputs in the format of the path's extension; into a directory, a file for each.
pub(super) fn write(
    path: &OutputPath,
    results: &[Outputs],
    positional: bool,
    specs: &[FeatureSpec],
) -> Result<(), Failure> {
    let entries = outputs::entries(results, positional);
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        _ if is_directory(path) => write_directory(path, &entries, specs),
        Some("npy") => {
            let entry = only(&entries, "a `.npy` file holds one array", "end the name in `.npz`")?;
            arrays::write_npy(path, &entry.array).map_err(|error| failure(&error))
        }
        Some("png") => {
            let hint =
                "end the name in `.npz`, or in `/` for a directory with a file for each output";
            let entry = only(&entries, "a `.png` file holds one image", hint)?;
            let spec = specs.iter().find(|spec| spec.name == entry.output);
            let png = spec.map(|spec| images::to_png(&entry.array, spec));
            let Some(png) = png else {
                let message = format!("output `{}` is not an image", entry.name);
                return Err(Failure::user(message).hint(Some("end the name in `.npy`")));
            };
            path.write(&png.map_err(|error| failure(&error))?)
        }
        _ => write_npz(path, &named(entries)),
    }
}

/// The arrays with their names.
pub(super) fn named(entries: Vec<Entry<'_>>) -> Vec<(String, Array)> {
    entries.into_iter().map(|entry| (entry.name, entry.array)).collect()
}

fn only<'e>(entries: &'e [Entry<'e>], what: &str, hint: &str) -> Result<&'e Entry<'e>, Failure> {
    let [entry] = entries else {
        let names: Vec<_> = entries.iter().map(|entry| format!("`{}`", entry.name)).collect();
        let message = format!("{what}, got {}", names.join(", "));
        return Err(Failure::user(message).hint(Some(hint)));
    };
    Ok(entry)
}

/// Whether a path is a directory, or ends like one. Packages and compiled models are not replaced.
fn is_directory(path: &OutputPath) -> bool {
    let ends_like_one = path
        .as_os_str()
        .as_encoded_bytes()
        .last()
        .is_some_and(|&last| std::path::is_separator(char::from(last)));
    !path.is_stdout()
        && (ends_like_one || path.is_dir())
        && !crate::commands::is_model_directory(path)
}

/// Writes `NAME.png` for images, and `NAME.npy` for all other outputs.
fn write_directory(
    directory: &OutputPath,
    entries: &[Entry<'_>],
    specs: &[FeatureSpec],
) -> Result<(), Failure> {
    if let Some(entry) = entries.iter().find(|entry| !is_file_name(&entry.name)) {
        let message = format!("output `{}` cannot be used as a file name", entry.name);
        return Err(Failure::user(message).hint(Some("pass `-o NAME.npz`, or `--positional`")));
    }
    std::fs::create_dir_all(&**directory).map_err(|error| {
        Failure::user(format_args!("{}: cannot be created: {error}", directory.display()))
    })?;
    for entry in entries {
        let is_image = |spec: &&FeatureSpec| {
            let description = spec.description.as_ref();
            spec.name == entry.output && description.is_some_and(|found| found.ty.image().is_some())
        };
        let path = |extension: &str| directory.join(format!("{}.{extension}", entry.name));
        let written = match specs.iter().find(is_image) {
            Some(spec) => images::to_png(&entry.array, spec)
                .map_err(|error| failure(&error))
                .and_then(|png| OutputPath::from(path("png")).write(&png)),
            None => arrays::write_npy(path("npy"), &entry.array).map_err(|error| failure(&error)),
        };
        written?;
    }
    Ok(())
}

/// Whether a name stays in its directory on every system.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let is_plain = matches!(components.next(), Some(Component::Normal(_)));
    is_plain && components.next().is_none() && !name.contains(['/', '\\', ':', '\0'])
}

pub(super) fn write_npz(path: &OutputPath, arrays: &[(String, Array)]) -> Result<(), Failure> {
    if !path.is_stdout() {
        return arrays::write_npz(path, arrays).map_err(|error| failure(&error));
    }
    let write = || {
        let mut to = BufWriter::new(std::io::stdout().lock());
        arrays::to_npz(&mut to, arrays)?;
        to.flush()
    };
    write().map_err(|error| Failure::user(format_args!("cannot write to standard output: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_file_names_with_path_components() {
        for (name, expected) in [
            ("y", true),
            ("scores.labels@3", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("/a", false),
            ("c:a", false),
            ("a\\b", false),
        ] {
            assert_eq!(is_file_name(name), expected, "{name:?}");
        }
    }
}
