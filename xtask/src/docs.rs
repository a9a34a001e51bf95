//! `cargo xtask docs`: builds the documentation site from `docs/` and the pages at the root with mdBook.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{describe, execute, root, target_directory};

/// Pages at the root, and their names in the book.
const AT_ROOT: [(&str, &str); 4] = [
    ("README.md", "introduction.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("CHANGELOG.md", "changelog.md"),
];

const SETTINGS: &str = r#"[book]
title = "coremill"
language = "en"
src = "src"

[build]
build-dir = "site"

[output.html]
smart-punctuation = false
"#;

/// Assembles the pages, and builds the site if mdBook is installed.
pub(crate) fn run() -> Result<(), String> {
    let book = target_directory(&root()).join("book");
    assemble(&root(), &book)?;
    if Command::new("mdbook").arg("--version").output().is_err() {
        return Err(format!(
            "the pages are in `{}`, but `mdbook` is not installed; install it with `cargo install mdbook --locked`",
            book.join("src").display()
        ));
    }
    execute(Command::new("mdbook").arg("build").arg(&book), "building the site")?;
    println!("{}", book.join("site/index.html").display());
    Ok(())
}

/// Copies all pages to one directory and adjusts their links.
fn assemble(root: &Path, book: &Path) -> Result<(), String> {
    let pages = book.join("src");
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(|error| describe("remove", &pages, &error))?;
    }
    fs::create_dir_all(&pages).map_err(|error| describe("make", &pages, &error))?;
    let settings = book.join("book.toml");
    fs::write(&settings, SETTINGS).map_err(|error| describe("write", &settings, &error))?;
    let copy = |from: &Path, name: &str| {
        let text = fs::read_to_string(from).map_err(|error| describe("read", from, &error))?;
        let to = pages.join(name);
        fs::write(&to, linked(&text)).map_err(|error| describe("write", &to, &error))
    };
    let docs = root.join("docs");
    let entries = fs::read_dir(&docs).map_err(|error| describe("read", &docs, &error))?;
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if path
            .extension()
            .is_some_and(|extension| ["md", "svg", "json"].iter().any(|known| extension == *known))
        {
            copy(&path, &entry.file_name().to_string_lossy())?;
        }
    }
    AT_ROOT.iter().try_for_each(|(from, to)| copy(&root.join(from), to))
}

/// Adjusts links for a single directory with all pages.
fn linked(text: &str) -> String {
    let mut text = text.replace("](docs/", "](").replace("](../docs/", "](");
    for (from, to) in AT_ROOT {
        text = text.replace(&format!("]({from}"), &format!("]({to}"));
        text = text.replace(&format!("](../{from}"), &format!("]({to}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The targets of a page's links to other pages.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let pages = targets.map(|target| target.split('#').next().unwrap_or_default());
        pages.filter(|page| page.ends_with(".md"))
    }

    #[test]
    fn docs_pages_are_listed_and_links_resolve() {
        let book = target_directory(&root()).join("book-of-the-test");
        assemble(&root(), &book).expect("the pages can be assembled");
        let pages = book.join("src");
        let summary = fs::read_to_string(pages.join("SUMMARY.md")).expect("a summary");
        let listed: Vec<_> = links(&summary).collect();
        for entry in fs::read_dir(&pages).expect("pages").filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = name.ends_with(".svg") || name.ends_with(".json");
            assert!(
                is_file || name == "SUMMARY.md" || listed.contains(&&*name),
                "docs/SUMMARY.md does not list `{name}`"
            );
            let text = fs::read_to_string(entry.path()).expect("a page");
            for link in links(&text) {
                assert!(
                    pages.join(link).exists(),
                    "`{name}` links to `{link}`, which is not a page"
                );
            }
        }
    }
}
