//! Sizes, rates and times, as people write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};

/// The day from which clocks count seconds.
const EPOCH: Date = Date::constant(1970, 1, 1);

/// A number of bytes: 500, 500k, 500M, 2G, 1.5GiB. Decimal unless the unit has an `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let expected = || "expected a size such as 500, 64k, 500M, 2G or 1.5GiB".to_string();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            _ => return Err(expected()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(expected);
        }
        let value: f64 = number.parse().map_err(|_| expected())?;
        let bytes = value * factor as f64;
        // No file is larger than 2^63 bytes, and the conversion stays exact enough below that.
        if !bytes.is_finite() || !(0.0..9.2e18).contains(&bytes) {
            return Err(expected());
        }
        Ok(Bytes(bytes.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} B", self.0),
            1_000..1_000_000 => write!(f, "{:.1} kB", n / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", n / 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.2} GB", n / 1e9),
            _ => write!(f, "{:.2} TB", n / 1e12),
        }
    }
}

/// Parses seconds, 0 to 86,400.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if (0.0..=86_400.0).contains(&f) => Ok(f),
        _ => Err("expected seconds from 0 to 86400".into()),
    }
}

/// Parses a time span such as 90s, 30m, 24h or 7d into seconds; at most ten years.
pub fn lifetime(text: &str) -> Result<u64, String> {
    let wrong = || "expected a time such as 90s, 30m, 24h or 7d, at most 3650d".to_string();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number = &text[..text.len() - unit.len_utf8()];
    let all = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    all.filter(|all| (1..=315_360_000).contains(all)).ok_or_else(wrong)
}

/// Parses an address and port at which a node can be called.
pub fn endpoint(text: &str) -> Result<std::net::SocketAddr, String> {
    let at = text.parse().ok().filter(|at| shoal_daemon::config::can_be_called(*at));
    at.ok_or_else(|| "expected IP:PORT that can be sent to, such as 192.0.2.1:23871".into())
}

/// Parses the seconds between two samples, 0.1 to 3,600.
pub fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(f) if (0.1..=3_600.0).contains(&f) => Ok(f),
        _ => Err("expected seconds from 0.1 to 3600".into()),
    }
}

/// A number of things of one kind, in words.
pub fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

/// Bytes per second for people.
pub fn per_second(rate: f64) -> String {
    format!("{}/s", Bytes(rate.clamp(0.0, 1e18) as u64))
}

/// A time span for people: 850 ms, 12 s, 3 min 5 s, 2 h 14 min, 3 d 4 h.
pub fn span(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{s} s"),
        60..3_600 => format!("{} min {} s", s / 60, s % 60),
        3_600..86_400 => format!("{} h {} min", s / 3_600, s % 3_600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// Seconds since 1970 as a date and time of day in UTC: 2026-11-29 03:20 UTC. Later times than the
/// year 9999 are shown as its end.
pub fn utc(unix_s: u64) -> String {
    let since = SignedDuration::from_secs(i64::try_from(unix_s).unwrap_or(i64::MAX));
    let time = DateTime::from(EPOCH).saturating_add(since);
    time.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Seconds since 1970 as a day in UTC: 2026-11-29.
pub fn day(unix_s: u64) -> String {
    utc(unix_s)[..10].to_owned()
}

/// Parses a day such as 2027-12-31 into seconds since 1970, at its beginning in UTC.
pub fn date(text: &str) -> Result<u64, String> {
    // The library reads other spellings too.
    let day = text.parse().ok().filter(|day: &Date| day.to_string() == text);
    let unix_s = day.and_then(|day| u64::try_from(day.duration_since(EPOCH).as_secs()).ok());
    unix_s.ok_or_else(|| format!("{text:?}: expected a day such as 2027-12-31"))
}

/// Seconds as a [`span`]; negative or infinite values are shown as 0.
pub fn span_s(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// 12345678 as 12,345,678.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let read = |text: &str| text.parse::<Bytes>().map(|b| b.0);
        assert_eq!(read("500M"), Ok(500_000_000));
        assert_eq!(read("64k"), Ok(64_000));
        assert_eq!(read("1.5GiB"), Ok(3 << 29));
        assert_eq!(read("0"), Ok(0));
        assert_eq!(read("2 GB"), Ok(2_000_000_000));
        for bad in ["", "M", "5X", "-1", "1.2.3", "99999999999999999999", "9999999999999T", "inf"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lifetimes_are_read() {
        let all = ["90s", "30m", "24h", "7d", "3650d"].map(|text| lifetime(text).ok());
        assert_eq!(all, [Some(90), Some(1_800), Some(86_400), Some(604_800), Some(315_360_000)]);
        for bad in ["", "s", "0h", "7", "-1d", "1.5h", "3651d", "99999999999999999999d", "7 d"] {
            assert!(lifetime(bad).is_err(), "{bad}");
        }
        assert!(lifetime("1\u{e9}").is_err());
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!([0, 951_782_400, u64::MAX].map(day), ["1970-01-01", "2000-02-29", "9999-12-31"]);
        assert_eq!(date("1970-01-01"), Ok(0));
        assert_eq!(date("2000-02-29"), Ok(951_782_400));
        assert_eq!(date("2100-03-01"), Ok(4_107_542_400));
        assert_eq!(date("9999-12-31"), Ok(253_402_214_400));
        let wrong = [
            "",
            "2027",
            "2027-2-1",
            "2027-02-29",
            "2027-13-01",
            "2027-12-00",
            "1-1-1-1",
            "20271231",
            "2027-12-31T00:00",
            "+002027-12-31",
            "1969-12-31",
            "10000-01-01",
            " 2027-12-31",
        ];
        for wrong in wrong {
            assert!(date(wrong).unwrap_err().contains("expected a day such as 2027-12-31"));
        }
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_922_445), "2026-11-29 03:20 UTC");
        assert_eq!(utc(4_107_542_399), "2100-02-28 23:59 UTC");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00 UTC");
        assert_eq!(utc(253_402_214_400), "9999-12-31 00:00 UTC");
        assert_eq!(utc(u64::MAX), "9999-12-31 23:59 UTC");
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(500_000_000).to_string(), "500.0 MB");
        assert_eq!(span(Duration::from_secs(185)), "3 min 5 s");
        assert_eq!(span(Duration::from_millis(85)), "85 ms");
        assert_eq!(span_s(f64::NAN), "0 ms");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(12), "12");
    }
}
