//! Dependencies between the files of a crate, read from its sources. They must be acyclic, like the
//! dependencies between crates.
//!
//! A name counts for the file that defines it, independent of re-exports, so a module that only re-exports
//! its children does not depend on them. Tests inside files are ignored, because they may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use crate::rust::{self, is_name};

/// Index of a module in `Crate::modules`.
type Id = usize;

struct Module {
    name: String,
    parent: Option<Id>,
    children: BTreeMap<String, Id>,
    items: BTreeSet<String>,
    /// Names that macro invocations may define: identifiers in the arguments, if the macro names items by its
    /// arguments.
    named: BTreeSet<String>,
    macros: BTreeMap<String, Definitions>,
    /// Macro invocations in item position.
    invocations: Vec<Invocation>,
    /// Names imported by `use`, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths in the code.
    paths: BTreeSet<Vec<String>>,
}

struct Crate {
    modules: Vec<Module>,
}

/// The items that some tokens define.
#[derive(Clone, Default)]
struct Definitions {
    names: BTreeSet<String>,
    /// Whether some items are named by arguments of a macro.
    by_argument: bool,
}

/// A macro invocation, and the names in its arguments.
struct Invocation {
    path: Vec<String>,
    names: BTreeSet<String>,
}

enum Resolution {
    Module(Id),
    /// An item, and the module that defines it.
    Item(Id),
}

/// Uses of one module by another: the two modules, and the used names.
type Edges = BTreeMap<(Id, Id), BTreeSet<String>>;

/// Modules that depend on each other.
pub(crate) struct Cycle {
    /// Their parent module.
    parent: String,
    ties: String,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "modules of `{}` use each other:{}", self.parent, self.ties)
    }
}

/// The cycles between the modules of the crate with the root `root`, with the uses that cause them.
///
/// A module includes its descendants, and a module and its children may depend on each other. Sibling modules
/// must not.
pub(crate) fn cycles(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Vec<Cycle> {
    let mut krate = Crate { modules: Vec::new() };
    krate.add_file(root, "crate".to_owned(), None, read);
    krate.expand();
    let mut found = Vec::new();
    for (parent, edges) in krate.edges() {
        for group in tangles(&edges) {
            let inside = |id: &Id| group.contains(id);
            let ties = edges.iter().filter(|((from, to), _)| inside(from) && inside(to));
            let ties = ties.map(|((from, to), names)| {
                let (from, to) = (&krate.modules[*from].name, &krate.modules[*to].name);
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                format!("\n  {from} -> {to}: {}", names.join(", "))
            });
            let names: Vec<_> =
                krate.line(parent).iter().map(|id| krate.modules[*id].name.as_str()).collect();
            found.push(Cycle { parent: names.join("::"), ties: ties.collect() });
        }
    }
    found
}

impl Crate {
    fn add_file(
        &mut self,
        path: &Path,
        name: String,
        parent: Option<Id>,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Option<Id> {
        let text = read(path)?;
        let tokens: Vec<_> = rust::tokens(&text).into_iter().map(|token| token.text).collect();
        let folder = path.parent().unwrap_or(path);
        let stem = path.file_stem().unwrap_or_default();
        let id = self.add_module(name, parent);
        let face = ["mod", "lib", "main"].iter().any(|face| stem == *face);
        let folder = if face { folder.to_owned() } else { folder.join(stem) };
        self.add_items(&tokens, id, &folder, read);
        Some(id)
    }

    fn add_module(&mut self, name: String, parent: Option<Id>) -> Id {
        self.modules.push(Module {
            name,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            named: BTreeSet::new(),
            macros: BTreeMap::new(),
            invocations: Vec::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            paths: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    /// Adds the items in `tokens`, the contents of module `id`, whose child modules are in `folder`.
    fn add_items(
        &mut self,
        tokens: &[String],
        id: Id,
        folder: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) {
        let (mut at, mut depth, mut exported) = (0, 0_usize, false);
        let mut place = None;
        while at < tokens.len() {
            let next = tokens.get(at + 1).map_or("", String::as_str);
            match tokens[at].as_str() {
                "#" if next == "[" || next == "!" => {
                    let start = if next == "[" { at + 1 } else { at + 2 };
                    let end = closing(tokens, start);
                    let attribute = &tokens[start..end];
                    at = end + 1;
                    if attribute.windows(3).any(|words| words == ["cfg", "(", "test"]) {
                        at = item_end(tokens, at);
                    } else if let Some(name) = attribute.iter().position(|word| word == "path") {
                        // `cfg_attr(condition, path = "…")` is the file of another configuration.
                        let conditional = attribute.iter().any(|word| word == "cfg_attr");
                        place = attribute.get(name + 2).filter(|_| !conditional).cloned();
                    }
                    continue;
                }
                "pub" => {
                    exported = true;
                    at += 1;
                    if next == "(" {
                        at = closing(tokens, at) + 1;
                    }
                    continue;
                }
                "mod" if depth == 0 => {
                    let name = next.to_owned();
                    let inner = folder.join(&name);
                    if tokens.get(at + 2).is_some_and(|token| token == "{") {
                        let end = closing(tokens, at + 2);
                        let child = self.add_module(name.clone(), Some(id));
                        self.add_items(&tokens[at + 3..end], child, &inner, read);
                        self.modules[id].children.insert(name, child);
                        at = end + 1;
                    } else {
                        let named = place.take().map(|place| folder.join(place.trim_matches('"')));
                        let files = [inner.with_extension("rs"), inner.join("mod.rs")];
                        let mut files = named.into_iter().chain(files);
                        if let Some(child) = files
                            .find_map(|file| self.add_file(&file, name.clone(), Some(id), read))
                        {
                            self.modules[id].children.insert(name, child);
                        }
                        at += 3;
                    }
                    exported = false;
                    continue;
                }
                "use" => {
                    let end = at + tokens[at..].iter().position(|token| token == ";").unwrap_or(1);
                    self.add_use(&tokens[at + 1..end], &mut Vec::new(), id, exported);
                    at = end;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union"
                    if depth == 0 =>
                {
                    if is_name(next) {
                        self.modules[id].items.insert(next.to_owned());
                    }
                    at += 1;
                }
                "macro_rules" if depth == 0 => {
                    let name = tokens.get(at + 2).cloned().unwrap_or_default();
                    self.modules[id].items.insert(name.clone());
                    self.modules[id].macros.insert(name, macro_definitions(&tokens[at + 3..]));
                    at += 2;
                }
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                word if is_name(word) && (at == 0 || is_path_start(&tokens[at - 1], word)) => {
                    let mut path = vec![word.to_owned()];
                    while tokens.get(at + 1).is_some_and(|token| token == "::")
                        && tokens.get(at + 2).is_some_and(|token| is_name(token))
                    {
                        path.push(tokens[at + 2].clone());
                        at += 2;
                    }
                    let marks = [at + 1, at + 2].map(|at| tokens.get(at).map(String::as_str));
                    if let (0, [Some("!"), Some("{" | "(" | "[")]) = (depth, marks) {
                        let arguments = &tokens[at + 3..closing(tokens, at + 2)];
                        let names = arguments.iter().filter(|token| is_name(token)).cloned();
                        let invocation = Invocation { path: path.clone(), names: names.collect() };
                        self.modules[id].items.extend(definitions(arguments).names);
                        self.modules[id].invocations.push(invocation);
                    }
                    self.modules[id].paths.insert(path);
                }
                _ => {}
            }
            exported = false;
            at += 1;
        }
    }

    /// Adds the items defined by invocations of the crate's macros to the invoking modules.
    fn expand(&mut self) {
        for id in 0..self.modules.len() {
            for Invocation { path, names } in std::mem::take(&mut self.modules[id].invocations) {
                let Some(found) = self.definitions(id, &path) else { continue };
                self.modules[id].items.extend(found.names);
                if found.by_argument {
                    self.modules[id].named.extend(names);
                }
            }
        }
    }

    /// The items that the macro at `path` defines. A macro without a path may also be defined in an outer
    /// module.
    fn definitions(&self, id: Id, path: &[String]) -> Option<Definitions> {
        let name = path.last()?;
        let defining = match self.find(id, path, &mut BTreeSet::new()) {
            Some(Resolution::Item(defining)) => Some(defining),
            _ => self
                .line(id)
                .into_iter()
                .rfind(|outer| self.modules[*outer].macros.contains_key(name)),
        };
        self.modules[defining?].macros.get(name).cloned()
    }

    /// Adds a `use`; a re-export does not count as a use.
    fn add_use(&mut self, tree: &[String], prefix: &mut [String], id: Id, exported: bool) {
        let mut path = prefix.to_vec();
        let mut at = 0;
        while at < tree.len() {
            match tree[at].as_str() {
                "::" => {}
                "*" => self.modules[id].globs.push(path.clone()),
                "{" => {
                    let end = closing(tree, at);
                    let mut start = at + 1;
                    let mut depth = 0;
                    for place in at + 1..=end {
                        match tree[place].as_str() {
                            "{" => depth += 1,
                            "}" if place < end => depth -= 1,
                            "," | "}" if depth == 0 || place == end => {
                                self.add_use(&tree[start..place], &mut path, id, exported);
                                start = place + 1;
                            }
                            _ => {}
                        }
                    }
                    return;
                }
                "as" => {
                    let alias = tree[at + 1].clone();
                    self.add_import(alias, path, id, exported);
                    return;
                }
                name => path.push(name.to_owned()),
            }
            at += 1;
        }
        if tree.last().is_some_and(|last| last == "*") || path.len() == prefix.len() {
            return;
        }
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(name) = path.last().cloned() {
            self.add_import(name, path, id, exported);
        }
    }

    fn add_import(&mut self, name: String, path: Vec<String>, id: Id, exported: bool) {
        if !exported {
            self.modules[id].paths.insert(path.clone());
        }
        self.modules[id].imports.insert(name, path);
    }

    /// Resolves `path` in module `id`.
    fn find(
        &self,
        id: Id,
        path: &[String],
        seen: &mut BTreeSet<(Id, String)>,
    ) -> Option<Resolution> {
        let mut at = id;
        for (index, word) in path.iter().enumerate() {
            match word.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.modules[at].parent?,
                name => match self.look_up(at, name, index == 0, seen)? {
                    Resolution::Module(module) => at = module,
                    item => return Some(item),
                },
            }
        }
        Some(Resolution::Module(at))
    }

    /// Resolves `name` in module `id`. `seen` contains the lookups in progress.
    fn look_up(
        &self,
        id: Id,
        name: &str,
        first: bool,
        seen: &mut BTreeSet<(Id, String)>,
    ) -> Option<Resolution> {
        let module = &self.modules[id];
        if let Some(child) = module.children.get(name) {
            return Some(Resolution::Module(*child));
        }
        if module.items.contains(name) {
            return Some(Resolution::Item(id));
        }
        if !seen.insert((id, name.to_owned())) {
            return None;
        }
        if let Some(path) = module.imports.get(name) {
            // `use name::…` of another crate with this name would recurse here.
            let itself = first && path.first().is_some_and(|start| start == name);
            return if itself { None } else { self.find(id, path, seen) };
        }
        let found = module.globs.iter().find_map(|glob| match self.find(id, glob, seen)? {
            Resolution::Module(target) if target != id => self.look_up(target, name, false, seen),
            _ => None,
        });
        found.or_else(|| module.named.contains(name).then_some(Resolution::Item(id)))
    }

    /// The module and its ancestors, starting with the crate.
    fn line(&self, id: Id) -> Vec<Id> {
        let mut line: Vec<_> =
            std::iter::successors(Some(id), |id| self.modules[*id].parent).collect();
        line.reverse();
        line
    }

    /// Dependencies among the children of each module.
    fn edges(&self) -> BTreeMap<Id, Edges> {
        let mut edges: BTreeMap<Id, Edges> = BTreeMap::new();
        for (id, module) in self.modules.iter().enumerate() {
            let from = self.line(id);
            for path in &module.paths {
                let Some(Resolution::Item(used)) = self.find(id, path, &mut BTreeSet::new()) else {
                    continue;
                };
                let to = self.line(used);
                let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                    let edges = edges.entry(from[shared - 1]).or_default();
                    edges.entry((*user, *used)).or_default().insert(path.join("::"));
                }
            }
        }
        edges
    }
}

/// Groups of modules that all reach each other.
fn tangles(edges: &Edges) -> BTreeSet<BTreeSet<Id>> {
    let reach = |start: Id| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(from) = open.pop() {
            for (_, to) in edges.range((from, 0)..(from + 1, 0)).map(|(edge, _)| *edge) {
                if seen.insert(to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<Id, _> = edges.keys().map(|(from, _)| (*from, reach(*from))).collect();
    let tied = reached.iter().filter(|(id, reached)| reached.contains(id));
    let group = |(id, others): (&Id, &BTreeSet<Id>)| {
        let back = |other: &&Id| reached.get(other).is_some_and(|reached| reached.contains(id));
        others.iter().filter(back).copied().collect()
    };
    tied.map(group).collect()
}

/// Whether a word after a token starts a path: fields, methods and macro arguments do not.
fn is_path_start(before: &str, word: &str) -> bool {
    match before {
        "." => false,
        "$" => word == "crate",
        _ => true,
    }
}

/// The items that the rules of a macro define; the rules are in brackets at the start of `tokens`.
fn macro_definitions(tokens: &[String]) -> Definitions {
    let mut found = Definitions::default();
    let end = closing(tokens, 0);
    let mut at = 1;
    while at < end {
        if tokens[at] == "=" && tokens[at + 1] == ">" {
            let body_end = closing(tokens, at + 2);
            let body = definitions(&tokens[at + 3..body_end]);
            found.names.extend(body.names);
            found.by_argument |= body.by_argument;
            at = body_end;
        } else if matches!(tokens[at].as_str(), "{" | "(" | "[") {
            at = closing(tokens, at);
        }
        at += 1;
    }
    found
}

/// The items directly in `tokens`, or in repetitions of a macro.
fn definitions(tokens: &[String]) -> Definitions {
    const KEYWORDS: [&str; 8] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];
    let mut found = Definitions::default();
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1).map_or("", String::as_str);
        match tokens[at].as_str() {
            "$" if next == "(" => {
                let end = closing(tokens, at + 1);
                let inner = definitions(&tokens[at + 2..end]);
                found.names.extend(inner.names);
                found.by_argument |= inner.by_argument;
                at = end;
            }
            "{" | "(" | "[" => at = closing(tokens, at),
            keyword if KEYWORDS.contains(&keyword) && next == "$" => found.by_argument = true,
            keyword if KEYWORDS.contains(&keyword) && is_name(next) => {
                found.names.insert(next.to_owned());
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The position of the closing bracket for the bracket at `open`.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// The end of the item that starts at `start`.
fn item_end(tokens: &[String], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].as_str() {
            ";" => return at + 1,
            "{" => return closing(tokens, at) + 1,
            "(" | "[" => at = closing(tokens, at),
            _ => {}
        }
        at += 1;
    }
    at
}
