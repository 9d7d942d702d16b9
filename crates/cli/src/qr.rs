//! A QR code in a terminal, with half a character per module.
//!
//! ```text
//! two rows of modules = one line: ' ' none light, '▀' the upper, '▄' the lower, '█' both
//! ```

use anyhow::{Context, Result};
use qrcode::{Color, EcLevel, QrCode};

/// Light modules around the code: the standard asks for four, but readers accept two.
const MARGIN: usize = 2;
/// White on black, independent of the terminal's own colours.
const WHITE_ON_BLACK: &str = "\x1b[97;40m";
const RESET: &str = "\x1b[0m";

/// Lines of the code of `text`. Without `coloured` the terminal must be dark.
///
/// # Errors
///
/// The text is too long for any code.
pub fn lines(text: &str, coloured: bool) -> Result<Vec<String>> {
    // A screen is not scratched, so the code has the least redundancy, and the largest modules.
    let code = QrCode::with_error_correction_level(text, EcLevel::L);
    let code = code.context("too long for a QR code")?;
    let (width, modules) = (code.width(), code.to_colors());
    let side = width + 2 * MARGIN;
    let is_light = |x: usize, y: usize| {
        let inside = |at: usize| at.checked_sub(MARGIN).filter(|at| *at < width);
        match (inside(x), inside(y)) {
            (Some(x), Some(y)) => modules[y * width + x] == Color::Light,
            // The last line of an odd number of rows is as dark as the terminal.
            _ => y < side,
        }
    };
    let cell = |x: usize, y: usize| match (is_light(x, y), is_light(x, y + 1)) {
        (true, true) => '█',
        (true, false) => '▀',
        (false, true) => '▄',
        (false, false) => ' ',
    };
    let line = |y: usize| {
        let cells: String = (0..side).map(|x| cell(x, y)).collect();
        if coloured { format!("{WHITE_ON_BLACK}{cells}{RESET}") } else { cells }
    };
    Ok((0..side).step_by(2).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the lines as a camera would.
    fn read(lines: &[String]) -> String {
        let plain = |line: &String| line.replace(WHITE_ON_BLACK, "").replace(RESET, "");
        let cells: Vec<Vec<char>> =
            lines.iter().map(|line| plain(line).chars().collect()).collect();
        const SCALE: usize = 4;
        let is_light = |x: usize, y: usize| {
            let (column, row) = (x / SCALE, y / SCALE);
            let cell = cells[row / 2][column];
            cell == '█' || cell == if row.is_multiple_of(2) { '▀' } else { '▄' }
        };
        let (width, height) = (cells[0].len() * SCALE, cells.len() * 2 * SCALE);
        let grey = |x, y| if is_light(x, y) { 255 } else { 0 };
        let mut image = rqrr::PreparedImage::prepare_from_greyscale(width, height, grey);
        let grids = image.detect_grids();
        assert_eq!(grids.len(), 1);
        grids[0].decode().unwrap().1
    }

    #[test]
    fn an_invite_is_read_back() {
        use shoal_crypto::{Identity, SigningKey};
        use shoal_joining::{DoorSecret, Invite, Token};
        let ends = ["192.0.2.1:7500", "[2001:db8::1]:7500", "198.51.100.7:7500"];
        for count in 1..=3 {
            let invite = Invite {
                authority: SigningKey::from_seed([1; 32]).public(),
                registrar: Identity::from_seed([2; 32]).public(),
                door: DoorSecret::new([3; 16]),
                token: Token::new([4; 16]),
                expires_unix_s: 1_800_000_000,
                endpoints: ends[..count].iter().map(|at| at.parse().unwrap()).collect(),
            };
            let text = invite.to_text().unwrap();
            for coloured in [false, true] {
                let lines = lines(&text, coloured).unwrap();
                assert!(lines.len() <= 40, "{} lines", lines.len());
                let found = read(&lines);
                assert_eq!(found, *text);
                assert_eq!(found.parse::<Invite>().unwrap(), invite);
            }
        }
    }

    #[test]
    fn what_fits_no_code_is_an_error() {
        assert!(lines(&"x".repeat(8_000), false).is_err());
    }
}
