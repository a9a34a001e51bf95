//! `buildInfo`: the tools that created a program.
//!
//! Packages contain the entries of the converter. Apple's compiler adds two entries, and this crate adds two
//! under the same names. Entries of this crate are removed when a compiled model is read, so that the program
//! is unchanged; entries of other compilers are kept.

use coremill_tensor::DType;

use coremill_mil::ir::{Constant, ConstantData, Program, Type};

pub(super) const ATTRIBUTE: &str = "buildInfo";
const COMPONENT: &str = "coremlc-component-MIL";
const VERSION: &str = "coremlc-version";

/// The value of [`COMPONENT`] in models compiled by this crate.
const OURS: &str = "coremill";

/// The attribute of a program with the added entries, unless a compiler has already added its own.
pub(super) fn with_ours(program: &Program) -> Constant {
    let mut info = program.attributes.get(ATTRIBUTE).cloned().unwrap_or_else(empty);
    if let ConstantData::Entries(entries) = &mut info.data
        && !entries.iter().any(|(key, _)| matches!(key.as_str(), Some(COMPONENT | VERSION)))
    {
        for (key, value) in [(COMPONENT, OURS), (VERSION, env!("CARGO_PKG_VERSION"))] {
            // Entries are sorted as in Apple's models, and so that removing them preserves the order of the
            // others.
            let later = |(other, _): &(Constant, Constant)| other.as_str() > Some(key);
            let at = entries.iter().position(later).unwrap_or(entries.len());
            entries.insert(at, (Constant::string(key), Constant::string(value)));
        }
    }
    info
}

/// Removes the entries if this crate added them.
pub(super) fn remove(program: &mut Program) {
    let Some(info) = program.attributes.get_mut(ATTRIBUTE) else { return };
    let ConstantData::Entries(entries) = &mut info.data else { return };
    let ours = |(key, value): &(Constant, Constant)| {
        key.as_str() == Some(COMPONENT) && value.as_str() == Some(OURS)
    };
    if !entries.iter().any(ours) {
        return;
    }
    entries.retain(|(key, _)| !matches!(key.as_str(), Some(COMPONENT | VERSION)));
    if entries.is_empty() {
        program.attributes.remove(ATTRIBUTE);
    }
}

fn empty() -> Constant {
    let string = || Box::new(Type::scalar(DType::String));
    Constant { ty: Type::Dictionary(string(), string()), data: ConstantData::Entries(Vec::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(entries: &[(&str, &str)]) -> Program {
        let mut program = Program::default();
        let mut info = empty();
        let entries = entries.iter().map(|(k, v)| (Constant::string(*k), Constant::string(*v)));
        info.data = ConstantData::Entries(entries.collect());
        program.attributes.insert(ATTRIBUTE, info);
        program
    }

    #[test]
    fn remove_undoes_added_entries() {
        for program in [
            Program::default(),
            info(&[("coremltools-version", "9.0")]),
            info(&[("z", "1"), ("a", "2")]),
        ] {
            let mut changed = program.clone();
            changed.attributes.insert(ATTRIBUTE, with_ours(&program));
            assert_ne!(changed, program);
            remove(&mut changed);
            assert_eq!(changed, program);
        }
    }

    #[test]
    fn preserves_entries_of_other_compilers() {
        let apple = info(&[(COMPONENT, "3520.4.1"), (VERSION, "3520.5.1")]);
        let mut program = apple.clone();
        program.attributes.insert(ATTRIBUTE, with_ours(&program));
        assert_eq!(program, apple);
        remove(&mut program);
        assert_eq!(program, apple);
    }

    #[test]
    fn inserts_entries_in_sorted_order() {
        let info = with_ours(&info(&[("a", ""), ("coremltools-version", "9.0")]));
        let ConstantData::Entries(entries) = &info.data else { panic!("a dictionary") };
        let keys: Vec<_> = entries.iter().filter_map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["a", COMPONENT, VERSION, "coremltools-version"]);
    }
}
