//! Warnings about memberships and mandates that end soon.

use shoal_directory::span;

/// Time before an end at which warnings begin, in seconds: two weeks.
pub const NEAR_S: u64 = 14 * 86_400;

/// True if the end, in seconds since 1970, is past or at most [`NEAR_S`] away.
pub fn is_near(end_unix_s: u64, now_unix_s: u64) -> bool {
    end_unix_s <= now_unix_s.saturating_add(NEAR_S)
}

/// Warning about a membership that ends within two weeks. `by_registrar`: a registrar granted it.
pub fn membership(end_unix_s: u64, now_unix_s: u64, by_registrar: bool) -> Option<String> {
    let left = end_unix_s.checked_sub(now_unix_s).filter(|left| *left > 0)?;
    is_near(end_unix_s, now_unix_s).then(|| {
        let how = match by_registrar {
            true => "have its registrar renew it",
            false => "sign it again with `shoal authority sign --dir DIR NAME --days N`",
        };
        format!("this node's membership ends in {}: {how}", span(left))
    })
}

/// Warning about a mandate that ends within two weeks, or has ended.
pub fn mandate(end_unix_s: u64, now_unix_s: u64) -> Option<String> {
    let how = "sign it anew with `shoal authority mandate --dir DIR NAME --until DATE`, or take \
               its members over with `shoal authority adopt --dir DIR NAME`";
    is_near(end_unix_s, now_unix_s).then(|| match end_unix_s.saturating_sub(now_unix_s) {
        0 => format!("has ended, with the memberships that it gave: {how}"),
        left => format!("ends in {}, with the memberships that it gave: {how}", span(left)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_spoken_of_two_weeks_before() {
        let end = 100 * 86_400;
        assert_eq!(membership(end, end - NEAR_S - 1, false), None);
        let said = membership(end, end - NEAR_S, false).unwrap();
        assert!(said.contains("ends in 14 d") && said.contains("authority sign"), "{said}");
        assert!(membership(end, end - 1, true).unwrap().contains("its registrar"));
        assert_eq!(membership(end, end, true), None, "another warning covers an ended membership");
        assert_eq!(mandate(end, end - NEAR_S - 1), None);
        assert!(mandate(end, end - 60).unwrap().contains("ends in 1 min"));
        assert!(mandate(end, end + 1).unwrap().contains("has ended"));
    }
}
