//! An invite in text that somebody pasted: a mail, a chat, a command line, a page.
//!
//! ```text
//! text --> flow: without white space, invisible characters, hyphens and marks of quotes
//!      --> each SHOAL:1/ in it --> letters, as many as the first two ask for --> invite
//! ```
//!
//! A mail program breaks lines and puts "> " before them; a chat adds quotes, a page invisible
//! characters. None of that is part of an invite, and none of it can be mistaken for a letter of
//! one.

use zeroize::Zeroizing;

use crate::base32;
use crate::invite::{HEAD, Invite, InviteError, VERSION, decode, is_whole, need, shortest};

/// Longest text that is searched, in bytes.
pub const PASTED_MAX: usize = 65_536;
/// How an invite begins, whatever its version.
const PREFIX: &str = "SHOAL:";
/// Escapes of a character in the address of a page.
const ESCAPES: [(&str, &str); 4] = [("%3A", ":"), ("%3a", ":"), ("%2F", "/"), ("%2f", "/")];

/// A character that can be seen, and whether white space stands before it.
type Letter = (char, bool);

/// Finds the one invite in a text.
///
/// # Errors
///
/// There is none, a broken one alone, or there are two different ones.
pub(crate) fn find(text: &str) -> Result<Invite, InviteError> {
    if text.len() > PASTED_MAX {
        return Err(InviteError::LongText);
    }
    let flow = flow(text);
    let (mut found, mut fault) = (None, None);
    for at in (0..flow.len()).filter(|at| begins(&flow[*at..], PREFIX)) {
        match (read(&flow[at..]), &found) {
            (Ok(invite), None) => found = Some(invite),
            (Ok(invite), Some(other)) if *other != invite => return Err(InviteError::Several),
            (Ok(_), Some(_)) => {}
            (Err(e), _) => fault = fault.or(Some(e)),
        }
    }
    found.ok_or_else(|| fault.unwrap_or(InviteError::NotAnInvite))
}

/// The characters of a text that count.
fn flow(text: &str) -> Zeroizing<Vec<Letter>> {
    let mut text = Zeroizing::new(text.to_owned());
    for (escape, meant) in ESCAPES {
        text = Zeroizing::new(text.replace(escape, meant));
    }
    let mut flow = Zeroizing::new(Vec::with_capacity(text.len()));
    let (mut gap, mut line_begins) = (true, true);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let ends_line = matches!(rest.peek(), Some('\n' | '\r'));
        match c {
            _ if is_unseen(c) => {}
            '\n' | '\r' => (gap, line_begins) = (true, true),
            c if c.is_whitespace() => gap = true,
            // Marks of a quoted line.
            '>' | '|' if line_begins => {}
            // A word, or a line of a mail or a shell, that goes on in the next line.
            '-' | '\u{2010}' | '\u{2011}' => {}
            '=' | '\\' if ends_line => {}
            c => {
                flow.push((c, gap));
                (gap, line_begins) = (false, false);
            }
        }
    }
    flow
}

/// Whether a character takes no room in a text.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\0' | '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{fffd}')
}

fn begins(flow: &[Letter], with: &str) -> bool {
    let mut letters = flow.iter().map(|(c, _)| c);
    with.chars().all(|c| letters.next().is_some_and(|other| other.eq_ignore_ascii_case(&c)))
}

/// Reads the invite with which a flow begins.
fn read(flow: &[Letter]) -> Result<Invite, InviteError> {
    let behind = &flow[PREFIX.len()..];
    let digits: String = behind.iter().map(|(c, _)| *c).take_while(char::is_ascii_digit).collect();
    match behind.get(digits.len()) {
        // The text ends in the middle of the head.
        None => {
            let have = PREFIX.len() + digits.len();
            return Err(InviteError::Truncated { have, need: shortest() });
        }
        Some(('/', _)) => {}
        Some(_) => return Err(InviteError::NotAnInvite),
    }
    match digits.parse::<u32>() {
        Ok(other) if other != VERSION => return Err(InviteError::OtherVersion(other)),
        Ok(_) if digits.len() == 1 => {}
        _ => return Err(InviteError::NotAnInvite),
    }
    let letters = &behind[digits.len() + 1..];
    let mut values = Zeroizing::new(Vec::with_capacity(letters.len().min(512)));
    let mut needed = None;
    for (at, (c, gap)) in letters.iter().enumerate() {
        if needed.is_some_and(|needed| at == needed) {
            break;
        }
        let Some(value) = base32::value(*c) else {
            let is_end = *gap || !(c.is_alphanumeric() || "!?#$%&+~@".contains(*c));
            let letter = InviteError::Letter { at: HEAD.len() + at + 1, letter: *c };
            return Err(if is_end { cut(at, needed) } else { letter });
        };
        values.push(value);
        if values.len() == 2 {
            needed = Some(need(&values)?);
        }
    }
    if needed != Some(values.len()) {
        return Err(cut(values.len(), needed));
    }
    // Letters that touch the last one belong to what was copied as the invite.
    let behind = letters[values.len()..].iter().enumerate();
    let touching = behind.take_while(|(at, (c, gap))| {
        c.is_ascii_alphanumeric() && !gap && !begins(&letters[values.len() + at..], PREFIX)
    });
    match touching.count() {
        0 => decode(&values),
        more => Err(InviteError::TooLong(more)),
    }
}

/// The end is missing behind so many letters. A text as long as a whole invite of another shape is
/// whole: its first letters, which say how long it is, are wrong.
fn cut(have: usize, needed: Option<usize>) -> InviteError {
    if needed.is_some() && is_whole(have) {
        return InviteError::Mistyped;
    }
    let need = needed.map_or_else(shortest, |needed| HEAD.len() + needed);
    InviteError::Truncated { have: HEAD.len() + have, need }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Token;
    use crate::{DoorSecret, Invite};
    use shoal_crypto::{Identity, SigningKey};

    fn text(token: u8) -> String {
        let invite = Invite {
            authority: SigningKey::from_seed([1; 32]).public(),
            registrar: Identity::from_seed([2; 32]).public(),
            door: DoorSecret::new([3; 16]),
            token: Token::new([token; 16]),
            expires_unix_s: 1_800_000_000,
            endpoints: vec!["192.0.2.1:7500".parse().unwrap()],
        };
        invite.to_text().unwrap().to_string()
    }

    #[test]
    fn an_invite_is_found_in_what_people_paste() {
        let (good, other) = (text(4), text(5));
        let (a, b) = good.split_at(100);
        let quoted: String = good
            .as_bytes()
            .chunks(60)
            .map(|l| format!("> {}\n", str::from_utf8(l).unwrap()))
            .collect();
        let unseen: String = good.chars().map(|c| format!("{c}\u{200b}")).collect();
        let pastes = [
            format!("\"{good}\""),
            format!("`{good}`"),
            format!("<{good}>"),
            format!("'{good}'."),
            format!("({good}),"),
            format!("**{good}**"),
            format!("Hello Bob, here it is: {good}\nSee you, Alice"),
            format!("shoal up {good}"),
            format!("$ shoal up {good} --dir ~/shoal"),
            quoted.clone(),
            format!("> On Monday Alice wrote:\n{quoted}> bye"),
            quoted.replace("> ", "> > "),
            unseen,
            format!("\u{feff}{good}\r\n"),
            format!("{a}\u{ad}{b}"),
            format!("{a}-\n{b}"),
            format!("{a}=\r\n{b}"),
            format!("{a}\\\n  {b}"),
            good.replace(':', "%3A").replace('/', "%2F"),
            format!("https://example.org/join?i={}&x=1", good.replace(':', "%3a")),
            format!("█▀▀▄ ▄█\n{good}\n"),
            format!("{good}\n{good}"),
            format!("{good}{good}"),
            format!("shoal up SHOAL:1/INVITE, that is:\n{good}"),
            good.chars().map(|c| format!("{c}\0")).collect(),
        ];
        for paste in &pastes {
            assert_eq!(find(paste).as_ref().map(|_| ()), Ok(()), "{paste}");
            assert_eq!(*find(paste).unwrap().to_text().unwrap(), good, "{paste}");
        }
        assert_eq!(find(&format!("{good} or {other}")), Err(InviteError::Several));
        assert_eq!(find(&"x".repeat(PASTED_MAX + 1)), Err(InviteError::LongText));
    }

    #[test]
    fn a_part_that_is_missing_is_told_from_a_letter_that_is_wrong() {
        let good = text(4);
        let cut = InviteError::Truncated { have: 200, need: good.len() };
        for paste in [format!("\"{}\"", &good[..200]), format!("{} ... you see?", &good[..200])] {
            assert_eq!(find(&paste), Err(cut), "{paste}");
        }
        let letter = InviteError::Letter { at: 200, letter: 'U' };
        assert_eq!(find(&format!("{}U{}", &good[..199], &good[200..])), Err(letter));
        assert_eq!(find("SHOAL: a network"), Err(InviteError::NotAnInvite));
        // The first letter is wrong, and says that the invite is longer.
        let shape = format!("{}1{}", &good[..8], &good[9..]);
        assert_eq!(find(&shape), Err(InviteError::Mistyped));
    }
}
