//! Characters of names that are invisible, or that move the text around them.
//!
//! Both kinds make a name look like another one. Names must not hold characters that move text,
//! except for the marks of direction, which Hebrew and Arabic names hold. Such a mark counts as one
//! invisible letter, and is written out. Names may hold invisible characters: Persian and the
//! scripts of India join letters with them, and emoji are composed with them. Any other invisible
//! character is written out.

/// True if a character moves text (Unicode 16: Bidi_Control, line and paragraph separators).
pub fn turns(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// True for the marks of direction (Unicode: implicit marks of Bidi_Control). Keyboards and
/// programs put them into names of Hebrew and Arabic.
pub fn is_mark(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
}

/// True if a character is invisible (Unicode 16: Default_Ignorable_Code_Point, and the marks of
/// interlinear text). With [`turns`], these are all of the category Cf except visible signs.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text, safe for a terminal: no character moves the cursor or the text, and none is invisible.
/// Control characters become U+FFFD, the other ones their number: `\u{200b}`.
pub fn written_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c.is_control() {
            out.push('\u{fffd}');
        } else if turns(c) || (is_unseen(c) && !is_at_home(before, c, rest.peek().copied())) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
        before = Some(c);
    }
    out
}

/// True if an invisible character has its proper use: a joiner between two letters or pictures, a
/// variation selector after one. The alphabets of Europe use neither.
fn is_at_home(before: Option<char>, c: char, after: Option<char>) -> bool {
    let is_joiner = |c| matches!(c, '\u{200c}' | '\u{200d}');
    let is_choice = |c| matches!(c, '\u{fe00}'..='\u{fe0f}');
    let joins = |c: Option<char>| c.is_some_and(|c| c >= '\u{590}');
    let seen = |c: Option<char>| joins(c) && !c.is_some_and(is_unseen);
    if is_joiner(c) {
        return (seen(before) || before.is_some_and(is_choice)) && seen(after);
    }
    is_choice(c) && seen(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hides_or_moves_is_written_out() {
        for (text, wanted) in [
            ("a\x1b[2Jb\n", "a\u{fffd}[2Jb\u{fffd}"),
            ("gpj.\u{202e}exe", "gpj.\\u{202e}exe"),
            ("a\u{61c}b", "a\\u{61c}b"),
            ("pay\u{200b}roll", "pay\\u{200b}roll"),
            ("pay\u{200d}roll\u{feff}", "pay\\u{200d}roll\\u{feff}"),
            ("\u{2060}\u{180e}\u{ad}\u{3164}", "\\u{2060}\\u{180e}\\u{ad}\\u{3164}"),
            ("é\u{200c}é", "é\\u{200c}é"),
            ("x\u{e0041}\u{fff9}", "x\\u{e0041}\\u{fff9}"),
            ("می\u{200c}\u{200c}خواهم", "می\\u{200c}\\u{200c}خواهم"),
        ] {
            assert_eq!(written_out(text), wanted);
            assert!(text.chars().any(|c| turns(c) || is_unseen(c) || c.is_control()));
        }
    }

    #[test]
    fn honest_names_stay_as_they_are() {
        for text in [
            "report.pdf",
            "Übergröße – 50 %.txt",
            "می\u{200c}خواهم.txt",
            "क्\u{200d}ष",
            "👩\u{200d}👩\u{200d}👧",
            "❤\u{fe0f}\u{200d}🔥",
            "日本語",
        ] {
            assert_eq!(written_out(text), text);
        }
    }

    #[test]
    fn the_marks_of_direction_are_all_unseen() {
        let marks = ('\0'..=char::MAX).filter(|c| turns(*c));
        assert_eq!(marks.filter(|c| !is_unseen(*c)).collect::<String>(), "\u{2028}\u{2029}");
    }
}
