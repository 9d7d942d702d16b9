//! Durations for people.

/// Formats seconds in the two largest units.
pub fn span(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let first = units.iter().position(|unit| seconds >= unit.1).unwrap_or(3);
    let mut left = seconds;
    let mut parts = Vec::new();
    for (name, length) in units.iter().skip(first).take(2) {
        if left >= *length || parts.is_empty() {
            parts.push(format!("{} {name}", left / length));
        }
        left %= length;
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_greatest_units_are_said() {
        assert_eq!([span(0), span(59), span(3_661)], ["0 s", "59 s", "1 h 1 min"]);
        assert_eq!([span(86_400), span(31_535_997)], ["1 d", "364 d 23 h"]);
    }
}
