//! Rules from a TOML file.

use std::path::Path;

use serde::Deserialize;

use super::config::{Rule, Scheme};
use crate::compress::Several;
use crate::error::Error;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleText>,
}

/// A rule in text form. In a file, each rule is a table `[[rule]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleText {
    module: Several,
    op: Several,
    min_elements: Option<u64>,
    max_elements: Option<u64>,
    keep: bool,
    recipe: Option<String>,
    group_size: Option<usize>,
    bits: Option<u32>,
    block: Option<[i64; 2]>,
}

/// Reads rules from a TOML file. Parameters that a rule omits are taken from `usual`.
pub fn read_rules(path: &Path, usual: Scheme) -> Result<Vec<Rule>, Error> {
    let text = crate::files::read_rules(path)?;
    let hint = "write each rule in a table `[[rule]]`";
    let file: File = toml::from_str(&text)
        .map_err(|error| Error::new(error.to_string().trim_end()).with_hint(hint).within(path))?;
    if file.rule.is_empty() {
        return Err(Error::new("it holds no rules").with_hint(hint).within(path));
    }
    let rules = file.rule.iter().enumerate();
    let rules = rules.map(|(at, rule)| rule.to_rule(at, usual).map_err(|error| error.within(path)));
    rules.collect()
}

const REMEDY: &str = "a rule selects layers by `module`, `op`, `min_elements` and `max_elements`, and sets `keep = true` or a \
     `recipe`, optionally with `group_size`, `bits` and `block`";

impl RuleText {
    /// Parses the rule with index `at`. Parameters that it omits are taken from `usual`.
    pub fn to_rule(&self, at: usize, usual: Scheme) -> Result<Rule, Error> {
        let wrong =
            |error: Error| Error::new(format!("rule {}: {error}", at + 1)).with_hint(REMEDY);
        self.understood(usual).map_err(wrong)
    }

    fn understood(&self, usual: Scheme) -> Result<Rule, Error> {
        let sizes = [self.group_size.is_some(), self.bits.is_some(), self.block.is_some()];
        let scheme = match (&self.recipe, self.keep) {
            (Some(_), true) => {
                return Err(Error::new("`keep` and `recipe` are mutually exclusive"));
            }
            (None, false) => return Err(Error::new("`keep` or `recipe` is required")),
            (None, true) if sizes.contains(&true) => {
                return Err(Error::new("`keep` cannot be combined with sizes"));
            }
            (None, true) => None,
            (Some(recipe), false) => {
                let size = |size: i64| match size {
                    -1 => Ok(0),
                    size => usize::try_from(size).ok().filter(|&size| size > 0).ok_or_else(|| {
                        Error::new(format!(
                            "`block` must hold sizes of at least 1, or -1, got {size}"
                        ))
                    }),
                };
                let block = match self.block {
                    Some([rows, columns]) => (size(rows)?, size(columns)?),
                    None => usual.block,
                };
                Some(Scheme {
                    recipe: recipe.parse()?,
                    group_size: self.group_size.unwrap_or(usual.group_size),
                    bits: self.bits.unwrap_or(usual.bits),
                    block,
                })
            }
        };
        Ok(Rule {
            modules: self.module.0.clone(),
            ops: self.op.0.clone(),
            min_elements: self.min_elements,
            max_elements: self.max_elements,
            scheme: scheme.filter(|scheme| scheme.storage().is_some()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Recipe;
    use super::*;

    fn rules(text: &str) -> Result<Vec<Rule>, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rules.toml");
        std::fs::write(&path, text).expect("the file can be written");
        let usual = Scheme::new(Recipe::Int8Static);
        read_rules(&path, usual).map_err(|error| error.to_string())
    }

    #[test]
    fn parses_rule_files() {
        let found = rules(
            "[[rule]]\nop = \"gather\"\nrecipe = \"int8-per-channel\"\n\n\
             [[rule]]\nmodule = [\"layers.*\", \"head\"]\nmin_elements = 100\nrecipe = \"int4-per-group\"\n\
             group_size = 16\n\n[[rule]]\nmax_elements = 99\nkeep = true\n\n\
             [[rule]]\nrecipe = \"codebook\"\nbits = 3\nblock = [16, -1]\n",
        );
        let found = found.expect("rules");
        assert_eq!(found[0].ops, ["gather"]);
        assert_eq!(found[1].scheme.map(|scheme| scheme.group_size), Some(16));
        assert_eq!((found[2].scheme, found[2].max_elements), (None, Some(99)));
        assert_eq!(found[3].scheme.map(|scheme| (scheme.bits, scheme.block)), Some((3, (16, 0))));
    }

    #[test]
    fn rejects_invalid_rules() {
        for (text, message) in [
            ("", "it holds no rules"),
            ("[[rule]]\nrecipe = \"int5\"", "unknown recipe `int5`; the recipes are `fp32`"),
            ("[[rule]]\nop = \"linear\"", "`keep` or `recipe` is required"),
            ("[[rule]]\nkeep = true\nrecipe = \"fp16\"", "are mutually exclusive"),
            ("[[rule]]\nkeep = true\nbits = 4", "`keep` cannot be combined with sizes"),
            (
                "[[rule]]\nrecipe = \"codebook\"\nblock = [0, 1]",
                "`block` must hold sizes of at least 1, or -1, got 0",
            ),
            ("[[rule]]\nrecipee = \"codebook\"", "unknown field `recipee`"),
        ] {
            let error = rules(text).expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
