use std::collections::{BTreeMap, BTreeSet};

use super::DelegatedModel;

/// Names each model so that the name is a valid file name: the only method that uses it, or
/// `shared`, with a number if several models have the same name.
pub(super) fn give(models: &mut [DelegatedModel]) {
    let stem = |model: &DelegatedModel| {
        let methods: BTreeSet<&str> = model.uses.iter().map(|user| &*user.method).collect();
        match methods.into_iter().collect::<Vec<_>>()[..] {
            [method] => portable(method),
            _ => "shared".to_owned(),
        }
    };
    let stems: Vec<String> = models.iter().map(stem).collect();
    let mut taken = BTreeSet::new();
    let mut counts = BTreeMap::new();
    for (model, stem) in models.iter_mut().zip(&stems) {
        // Some file systems ignore case.
        let same = |other: &&String| other.eq_ignore_ascii_case(stem);
        let several = stems.iter().filter(same).count() > 1;
        let count: &mut usize = counts.entry(stem.to_ascii_lowercase()).or_default();
        loop {
            model.name = if several { format!("{stem}_{count}") } else { stem.clone() };
            *count += 1;
            if taken.insert(model.name.to_ascii_lowercase()) {
                break;
            }
            model.name = format!("{stem}_{count}");
            if taken.insert(model.name.to_ascii_lowercase()) {
                break;
            }
        }
    }
}

/// Replaces characters of a method's name that are unsafe in file names. The program may be
/// malicious.
fn portable(method: &str) -> String {
    const MOST: usize = 100;
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let name: String = method.chars().take(MOST).map(fit).collect();
    if name.is_empty() { "model".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use coremill_pte::coreml::{Directory, Interface, Metadata, Methods, Payload};

    use super::super::Use;
    use super::*;

    fn named(methods: &[&[&str]]) -> Vec<String> {
        let metadata = Metadata {
            identifier: "executorch_1".to_owned(),
            methods: Methods::One(Interface::default()),
            unknown: Default::default(),
        };
        let directory = Directory::new("lowered_module");
        let model = |methods: &&[&str]| DelegatedModel {
            name: String::new(),
            uses: methods
                .iter()
                .map(|method| Use { method: (*method).to_owned(), delegate: 0, function: None })
                .collect(),
            payload: Payload {
                directory: directory.clone(),
                metadata: metadata.clone(),
                reference: None,
            },
        };
        let mut models: Vec<DelegatedModel> = methods.iter().map(model).collect();
        give(&mut models);
        models.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn model_names_are_unique_safe_file_names() {
        assert_eq!(named(&[&["forward"]]), ["forward"]);
        assert_eq!(named(&[&["forward"], &["forward"]]), ["forward_0", "forward_1"]);
        assert_eq!(named(&[&["a", "b"], &["a"]]), ["shared", "a"]);
        assert_eq!(named(&[&["../a/b"], &[""]]), ["___a_b", "model"]);
        assert_eq!(named(&[&["A"], &["a"]]), ["A_0", "a_1"]);
        let clash = named(&[&["a"], &["a"], &["a_0"]]);
        assert_eq!(clash.iter().collect::<BTreeSet<_>>().len(), 3, "{clash:?}");
    }
}
