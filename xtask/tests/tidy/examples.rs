//! Checks of examples in the documentation of the façade.

/// Starts of declarations of public items.
const ITEMS: [&str; 5] = ["pub fn ", "pub struct ", "pub enum ", "pub trait ", "pub type "];

/// Whether the documentation at the head of a module or crate contains an example.
pub(crate) fn head_has_example(text: &str) -> bool {
    let head = text.lines().take_while(|line| line.is_empty() || line.starts_with("//!"));
    head.into_iter().any(|line| line.contains("```"))
}

/// The documented public modules in files of their own.
pub(crate) fn public_modules(text: &str) -> Vec<&str> {
    let mut before = "";
    let mut found = Vec::new();
    for line in text.lines() {
        let name = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';'));
        found.extend(name.filter(|_| before != "#[doc(hidden)]"));
        before = line;
    }
    found
}

/// The items of a file whose documentation has neither an example nor a link to an item that may have one.
/// Functions need an example of their own.
pub(crate) fn items_without_example(text: &str) -> Vec<String> {
    let mut documentation = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(item) = ITEMS.iter().find(|item| line.starts_with(**item)) {
            let is_shown = documentation.contains("```");
            let is_linked = documentation.contains("[`") && *item != "pub fn ";
            let name =
                line[item.len()..].split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let name = name.into_iter().next().unwrap_or_default();
            if !is_shown && !is_linked {
                found.push(name.to_owned());
            }
        }
        match line.strip_prefix("///") {
            Some(said) => documentation += said,
            None if line.starts_with("#[") => {}
            None => documentation.clear(),
        }
    }
    found
}
