//! Search for an invite in a pasted text: a mail, a chat, a command line, a web page.
//!
//! ```text
//! text --> flow: without white space, invisible characters, hyphens and marks of quotes
//!      --> each SHOAL:1/ in it --> letters, as many as the first two ask for --> invite
//! ```
//!
//! A mail program breaks lines and puts "> " before them; a chat adds quotes, a page invisible
//! characters. None of these belongs to an invite, and none can be mistaken for one of its letters.

use shoal_crypto::encoding::is_base32;
use zeroize::Zeroizing;

use crate::invite::{HEAD, Invite, InviteError, InviteVersion, decode, is_whole, need, shortest};

/// Maximum length of a text to search, in bytes.
pub const PASTED_MAX: usize = 65_536;
/// Prefix of invites of every version.
const PREFIX: &str = "SHOAL:";
/// URL escapes of the characters in the prefix.
const ESCAPES: [(&str, &str); 4] = [("%3A", ":"), ("%3a", ":"), ("%2F", "/"), ("%2f", "/")];

/// A visible character, and true if white space precedes it.
type PastedChar = (char, bool);

/// Finds the one invite in a text.
///
/// # Errors
///
/// The text has no valid invite, or two different ones.
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

/// The visible characters of a text, without line breaks, quote marks and hyphens.
fn flow(text: &str) -> Zeroizing<Vec<PastedChar>> {
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
            // Quote marks of a mail.
            '>' | '|' if line_begins => {}
            // Continuations: hyphenation, or the end of a line in a mail or shell.
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

/// True for characters that are not visible.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\0' | '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}' | '\u{fffd}')
}

fn begins(flow: &[PastedChar], with: &str) -> bool {
    let mut letters = flow.iter().map(|(c, _)| c);
    with.chars().all(|c| letters.next().is_some_and(|other| other.eq_ignore_ascii_case(&c)))
}

/// Reads the invite at the beginning of `flow`.
fn read(flow: &[PastedChar]) -> Result<Invite, InviteError> {
    let behind = &flow[PREFIX.len()..];
    let digits: String = behind.iter().map(|(c, _)| *c).take_while(char::is_ascii_digit).collect();
    match behind.get(digits.len()) {
        // The text ends within the prefix.
        None => {
            let have = PREFIX.len() + digits.len();
            return Err(InviteError::Truncated { have, need: shortest() });
        }
        Some(('/', _)) => {}
        Some(_) => return Err(InviteError::NotAnInvite),
    }
    let version = match digits.parse::<u32>().map(|number| (number, InviteVersion::of(number))) {
        Ok((other, None)) => return Err(InviteError::OtherVersion(other)),
        Ok((_, Some(version))) if digits.len() == 1 => version,
        _ => return Err(InviteError::NotAnInvite),
    };
    let letters = &behind[digits.len() + 1..];
    let mut own = Zeroizing::new(String::with_capacity(letters.len().min(1_024)));
    let mut needed = None;
    for (at, (c, gap)) in letters.iter().enumerate() {
        if needed.is_some_and(|needed| at == needed) {
            break;
        }
        if !is_base32(*c) {
            let is_end = *gap || !(c.is_alphanumeric() || "!?#$%&+~@".contains(*c));
            let letter = InviteError::Letter { at: HEAD.len() + at + 1, letter: *c };
            return Err(if is_end { cut(version, at, needed) } else { letter });
        }
        own.push(*c);
        if own.len() == version.first_letters() {
            needed = Some(need(version, &own)?);
        }
    }
    if needed != Some(own.len()) {
        return Err(cut(version, own.len(), needed));
    }
    // Letters directly behind the last one were copied as part of the invite.
    let behind = letters[own.len()..].iter().enumerate();
    let touching = behind.take_while(|(at, (c, gap))| {
        c.is_ascii_alphanumeric() && !gap && !begins(&letters[own.len() + at..], PREFIX)
    });
    match touching.count() {
        0 => decode(version, &own),
        more => Err(InviteError::TooLong(more)),
    }
}

/// The error for an invite that ends after `have` letters. If a whole invite of another shape has
/// this length, the first letters, which hold the shape, are wrong.
fn cut(version: InviteVersion, have: usize, needed: Option<usize>) -> InviteError {
    if needed.is_some() && is_whole(version, have) {
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
        // A wrong first letter makes the invite look longer.
        let shape = format!("{}1{}", &good[..8], &good[9..]);
        assert_eq!(find(&shape), Err(InviteError::Mistyped));
    }
}
