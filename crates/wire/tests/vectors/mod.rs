//! Reads golden vectors. Tests of several crates include this file.

/// Bytes of the vector file `name` in a folder of `vectors`: `#` starts a comment, white space is
/// ignored.
pub fn vector(folder: &str, name: &str) -> Vec<u8> {
    let all = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/vectors");
    let text = std::fs::read_to_string(format!("{all}/{folder}/{name}.hex")).expect(name);
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    let digits: String = lines.flat_map(str::split_whitespace).collect();
    let pairs = digits.as_bytes().chunks(2).map(|pair| core::str::from_utf8(pair).expect(name));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect(name)).collect()
}
