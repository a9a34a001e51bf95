//! A tokenizer for Rust that is sufficient for the checks.

/// A word, a punctuation mark or a string.
pub(crate) struct Token {
    pub(crate) text: String,
    /// The line, starting at 1.
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is_string(&self) -> bool {
        is_string(&self.text)
    }
}

fn is_string(token: &str) -> bool {
    token.ends_with('"') || token.ends_with("\"#")
}

/// Whether the token is an identifier or a keyword.
pub(crate) fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_') && !token.ends_with('"')
}

/// The start of the tests in a file; the number of tokens if it has none.
pub(crate) fn tests_start(tokens: &[Token]) -> usize {
    let marks = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
    let mut windows = tokens.windows(marks.len());
    let found = windows.position(|words| words.iter().map(|word| &word.text).eq(marks));
    found.unwrap_or(tokens.len())
}

/// The lines that index or slice a list or remove an element from it, which panics if the list is too short,
/// or that subtract from a rank, which may be smaller. Indexing an array by a literal is exempt, because the
/// compiler checks it.
pub(crate) fn unchecked_places(text: &str) -> Vec<usize> {
    const KEYWORDS: [&str; 11] =
        ["as", "break", "dyn", "else", "for", "if", "in", "let", "match", "mut", "return"];
    const METHODS: [&str; 3] = ["split_at", "swap", "swap_remove"];
    let tokens = tokens(text);
    let tokens: Vec<&Token> = tokens.iter().take(tests_start(&tokens)).collect();
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let is_unchecked = |at: usize| match text(at) {
        "[" if at > 0 => {
            let before = text(at - 1);
            let is_list =
                matches!(before, ")" | "]" | "?") || is_name(before) && !KEYWORDS.contains(&before);
            let is_number = text(at + 1).parse::<usize>().is_ok() && text(at + 2) == "]";
            let is_whole = (text(at + 1), text(at + 2), text(at + 3)) == (".", ".", "]");
            let follows_attribute = before == "]" && text(at + 1) == "#";
            is_list && !is_number && !is_whole && !follows_attribute
        }
        // Maps take keys by reference.
        "remove" => text(at + 1) == "(" && text(at + 2) != "&",
        // The rank may be smaller than the subtracted number.
        "-" if at > 2 => {
            let is_rank = text(at - 1) == "rank"
                || text(at - 1) == ")" && matches!(text(at - 3), "rank" | "len");
            is_rank && text(at + 1).parse::<usize>().is_ok()
        }
        name => METHODS.contains(&name) && at > 0 && text(at - 1) == ".",
    };
    (0..tokens.len()).filter(|&at| is_unchecked(at)).map(|at| tokens[at].line).collect()
}

/// The tokens of a text without comments, characters and lifetimes.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, counts) = length_of(rest, first);
        let (token, after) = rest.split_at(length);
        if counts {
            found.push(Token { text: token.to_owned(), line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

/// The text with the contents of strings removed except for line breaks.
pub(crate) fn without_strings(text: &str) -> String {
    let (mut found, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let (length, counts) = length_of(rest, first);
        let (token, after) = rest.split_at(length);
        if counts && is_string(token) {
            found.push_str("\"\"");
            found.extend(token.matches('\n'));
        } else {
            found.push_str(token);
        }
        rest = after;
    }
    found
}

/// Length of the element at the start of `text`, and whether it is a token.
fn length_of(text: &str, first: char) -> (usize, bool) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if text.starts_with("//") {
        (text.find('\n').unwrap_or(text.len()), false)
    } else if text.starts_with("/*") {
        (text.find("*/").map_or(text.len(), |end| end + 2), false)
    } else if let Some(length) = raw_string(text) {
        (length, true)
    } else if first == '"' {
        let mut escaped = false;
        let end = text.char_indices().skip(1).find(|(_, c)| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        (end.map_or(text.len(), |(at, _)| at + 1), true)
    } else if first == '\'' {
        let mut chars = text.char_indices().skip(1);
        let inner = chars.next().map_or(' ', |(_, c)| c);
        let after = chars.next();
        if inner == '\\' {
            (chars.find(|(_, c)| *c == '\'').map_or(text.len(), |(at, _)| at + 1), false)
        } else if let Some((at, '\'')) = after {
            (at + 1, false)
        } else {
            (text[1..].find(|c: char| !is_word(c)).map_or(text.len(), |end| end + 1), false)
        }
    } else if is_word(first) {
        (text.find(|c: char| !is_word(c)).unwrap_or(text.len()), true)
    } else if text.starts_with("::") {
        (2, true)
    } else {
        (first.len_utf8(), !first.is_whitespace())
    }
}

/// Length of the raw string at the start of `text`.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let marks = body.len() - body.trim_start_matches('#').len();
    let content = body[marks..].strip_prefix('"')?;
    let end = content.find(&format!("\"{}", "#".repeat(marks)))?;
    Some(text.len() - content.len() + end + 1 + marks)
}
