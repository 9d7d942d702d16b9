//! The code of a Rust source file without comments and literals.
//!
//! No parser is needed. The checks search for words, lines and braces, which remain when comments,
//! strings and character literals are blanked.

/// A function in a source file.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Line of the word `fn`, counted from 1.
    pub line: usize,
    /// Number of lines from the word `fn` to the closing brace, inclusive.
    pub lines: usize,
}

/// The source with comments and literals replaced by spaces. Line breaks remain.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            out.extend(bytes[at..end].iter().map(|&b| if b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// End of the comment or literal that starts at `at`; `at` itself if none starts there.
pub fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => at + block_comment_len(rest),
        [b'"', ..] => at + string_len(rest),
        [b'b' | b'c', b'"', ..] if !inside_word => at + 1 + string_len(&rest[1..]),
        [b'r', b'"' | b'#', ..] if !inside_word => at + raw_string_len(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !inside_word => at + raw_string_len(rest, 2),
        [b'b', b'\'', ..] if !inside_word => at + 1 + char_len(&rest[1..]),
        [b'\'', ..] => at + char_len(rest),
        _ => at,
    }
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a raw string whose hashes start at `prefix`. Zero for a raw identifier such as `r#fn`.
fn raw_string_len(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&b| b == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 0;
    }
    let body = prefix + hashes + 1;
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let found = rest[body..].windows(end.len()).position(|w| w == end);
    found.map_or(rest.len(), |p| body + p + end.len())
}

/// Length of a character literal. Zero for a lifetime.
fn char_len(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', _, tail @ ..] => {
            3 + tail.iter().position(|&b| b == b'\'').map_or(tail.len(), |p| p + 1)
        }
        // One character of up to four bytes in UTF-8.
        _ => match rest.iter().skip(2).take(4).position(|&b| b == b'\'') {
            Some(p) if p == 0 || rest[1] >= 0x80 => p + 3,
            _ => 0,
        },
    }
}

/// True for bytes of identifiers.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Offsets in bytes at which `word` occurs in `code` as a whole word. A word may be a path such as
/// `a::b`.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at == 0 || !is_word(bytes[at - 1]);
        let end = at + word.len();
        before && (end == bytes.len() || !is_word(bytes[end]))
    })
}

/// Line of the byte `at`, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count()
}

/// Functions with a body in `code`, the result of [`code_only`].
pub fn functions(code: &str) -> Vec<Function> {
    words(code, "fn").filter_map(|at| function_at(code, at)).collect()
}

fn function_at(code: &str, at: usize) -> Option<Function> {
    let after = code[at + 2..].trim_start();
    let name: String = after.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect();
    if name.is_empty() {
        return None; // a function pointer type
    }
    let bytes = code.as_bytes();
    let (mut depth, mut body, mut i) = (0i32, None, at);
    while i < bytes.len() {
        match bytes[i] {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' => {
                body = body.or((depth == 0).then_some(depth));
                depth += 1;
            }
            b'}' => {
                depth -= 1;
                if body == Some(depth) {
                    let (line, last) = (line_of(code, at), line_of(code, i));
                    return Some(Function { name, line, lines: last - line + 1 });
                }
            }
            b';' if depth == 0 => return None,
            _ => {}
        }
        i += 1;
    }
    None
}
