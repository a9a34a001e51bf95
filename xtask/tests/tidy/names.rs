//! Names of types, functions, modules and tests that are not terms of the field.

/// Participles that are established names of types.
const TERMS: [&str; 2] = ["Memoized", "Verified"];

/// Irregular participles, which describe an action rather than a kind of object.
const PARTICIPLES: [&str; 17] = [
    "Begun", "Built", "Chosen", "Found", "Given", "Grown", "Held", "Hidden", "Kept", "Known",
    "Lent", "Lying", "Made", "Seen", "Stored", "Taken", "Told",
];

/// Former type names of this project that were replaced by terms of the field.
const COINED_TYPES: [&str; 40] = [
    "Absent", "Along", "Anything", "Around", "Beside", "Care", "Claim", "Crumbs", "Culprits",
    "Cure", "Demands", "Draft", "Dynamism", "Ends", "Fate", "Fed", "Feed", "Figures", "Folded",
    "Gaps", "Hit", "Holds", "Joining", "Ladder", "Lay", "Look", "Middle", "Mistake", "Most",
    "Natives", "Outside", "Pieces", "Ranks", "Reach", "Remake", "Rung", "Spare", "Spot", "Stands",
    "Trouble",
];

/// Former names of functions and modules that were replaced.
const COINED_ITEMS: [&str; 24] = [
    "adopt",
    "afresh",
    "blame",
    "crumbs",
    "culprits",
    "emptied",
    "fed",
    "forgets",
    "group_queries",
    "idle_rules",
    "keep_apart",
    "merge_duplicates",
    "namesake",
    "ours",
    "own_times",
    "pickers",
    "restate",
    "simplify_updates",
    "spoil",
    "state_literals",
    "surrounded",
    "tend",
    "told",
    "trits",
];

/// Types, functions and modules of a source whose names are not terms of the field, with their lines.
pub(crate) fn odd_names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let keyword = words.by_ref().find(|word| {
            let modifiers = ["", "pub", "crate", "super", "in", "const", "unsafe", "async"];
            !modifiers.contains(word)
        });
        let (Some(keyword), Some(name)) = (keyword, words.find(|word| !word.is_empty())) else {
            continue;
        };
        let odd = match keyword {
            "struct" | "enum" | "trait" => {
                let is_bare = !name[1..].contains(|c: char| c.is_ascii_uppercase());
                let is_participle = is_bare && name.ends_with("ed") || PARTICIPLES.contains(&name);
                (is_participle && !TERMS.contains(&name)) || COINED_TYPES.contains(&name)
            }
            "fn" | "mod" => COINED_ITEMS.contains(&name),
            _ => false,
        };
        if odd && !line.trim_start().starts_with("//") {
            found.push(format!("{}: `{name}` is a banned name; use an established term", at + 1));
        }
    }
    found
}

/// First words that do not begin a statement about behavior.
const VAGUE_STARTS: [&str; 7] = ["a", "an", "nothing", "the", "what", "whatever", "which"];

/// Words of a test's name that need a second reading.
const VAGUE_WORDS: [&str; 8] =
    ["apart", "however", "said", "there", "those", "told", "what", "whom"];

/// Maximum length of a test's name.
const MAX_TEST_NAME: usize = 60;

/// Tests of a Rust or Python source with vague or long names, each with its line.
pub(crate) fn odd_tests(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        is_test |= line == "#[test]";
        let function = line.strip_prefix("fn ").filter(|_| is_test);
        let Some(name) = function.or_else(|| line.strip_prefix("def test_")) else { continue };
        is_test = false;
        let name = name.split('(').next().unwrap_or_default();
        let words: Vec<_> = name.split('_').collect();
        let is_vague =
            VAGUE_STARTS.contains(&words[0]) || words.iter().any(|word| VAGUE_WORDS.contains(word));
        if is_vague || name.len() > MAX_TEST_NAME {
            found.push(format!(
                "{}: `{name}` does not state the tested behavior in up to {MAX_TEST_NAME} characters, \
                 such as `rejects_truncated_archives`",
                at + 1
            ));
        }
    }
    found
}
