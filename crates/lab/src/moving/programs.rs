//! Programs between a and b, and parsers of their output.

use std::net::IpAddr;

use anyhow::{Context, Result, anyhow};

use super::place::VariantNetwork;
use crate::figures::figure;
use crate::programs::{self, web};
use crate::record::Figure;

/// Payload of pings in bytes: with the ICMP header, pings have 64 bytes, as in the paper.
const PING_PAYLOAD: &str = "56";
/// Interval of pings in the calm test, in seconds.
const PING_EVERY: &str = "0.005";
/// UDP payload in bytes.
const PAYLOAD: &str = "1200";

/// Results of `ping`.
#[derive(Debug, PartialEq)]
pub struct PingResults {
    sent: f64,
    came: f64,
    min_ms: f64,
    mean_ms: f64,
    max_ms: f64,
    /// Round trips that were printed one per line, in ascending order.
    each_ms: Vec<f64>,
}

impl PingResults {
    /// Parses the output of `ping`; `None` without a summary.
    fn read(text: &str) -> Option<PingResults> {
        let counts = text.lines().find(|line| line.contains("transmitted"))?;
        let mut numbers = counts.split(|c: char| !c.is_ascii_digit()).flat_map(str::parse);
        let (sent, came) = (numbers.next()?, numbers.next()?);
        // "rtt min/avg/max/mdev = 0.1/0.2/0.3/0.1 ms, pipe 2"
        let times = text.split("mdev = ").nth(1).unwrap_or_default();
        let mut times = times.split(['/', ' ']).map(|time| time.parse().unwrap_or(f64::NAN));
        let mut time = || times.next().unwrap_or(f64::NAN);
        let each = text.lines().filter_map(|line| line.split("time=").nth(1));
        let each = each.filter_map(|rest| rest.split(' ').next()?.parse().ok());
        let mut each_ms: Vec<f64> = each.collect();
        each_ms.sort_by(f64::total_cmp);
        Some(PingResults { sent, came, min_ms: time(), mean_ms: time(), max_ms: time(), each_ms })
    }

    /// Adds the pings of another run.
    pub fn add(&mut self, more: PingResults) {
        let sum = self.mean_ms * self.came + more.mean_ms * more.came;
        (self.sent, self.came) = (self.sent + more.sent, self.came + more.came);
        self.mean_ms = sum / self.came;
        (self.min_ms, self.max_ms) = (self.min_ms.min(more.min_ms), self.max_ms.max(more.max_ms));
        self.each_ms.extend(more.each_ms);
        self.each_ms.sort_by(f64::total_cmp);
    }

    /// The figures of these pings.
    pub fn figures(&self, of: &str) -> Vec<Figure> {
        let lost = (self.sent - self.came) / self.sent.max(1.0);
        let mut figures = vec![
            figure("ping_min_ms", of, self.min_ms),
            figure("ping_ms", of, self.mean_ms),
            figure("ping_max_ms", of, self.max_ms),
            figure("ping_lost", of, lost),
        ];
        // The last thousandth of the values begins at this index.
        let place = (self.each_ms.len() * 999).div_ceil(1_000);
        let p999 = place.checked_sub(1).and_then(|place| self.each_ms.get(place));
        figures.extend(p999.map(|ms| figure("ping_p999_ms", of, *ms)));
        figures
    }
}

/// Pings at an interval of five milliseconds.
pub fn echoes(place: &VariantNetwork, count: u32) -> Result<PingResults> {
    let (count, far) = (count.to_string(), place.far.to_string());
    let words = ["-i", PING_EVERY, "-s", PING_PAYLOAD, "-W", "1", "-c", &count, &far];
    let echoes = PingResults::read(&place.run("ping", &words)?);
    echoes.context("is ping installed and in the search path?")
}

/// The figures of pings at a low rate.
pub fn calm(place: &VariantNetwork, count: u32) -> Result<Vec<Figure>> {
    Ok(echoes(place, count)?.figures("calm"))
}

/// Pings as fast as answers come, but at least a hundred per second.
pub fn flood(place: &VariantNetwork, count: u32) -> Result<Vec<Figure>> {
    let (words, far) = (count.to_string(), place.far.to_string());
    let words = ["-q", "-f", "-s", PING_PAYLOAD, "-W", "1", "-c", &words, &far];
    let echoes = PingResults::read(&place.run("ping", &words)?);
    let of = format!("flood of {count}");
    Ok(echoes.context("is ping installed and in the search path?")?.figures(&of))
}

/// Subject of the figures of a file with this size in millions of bytes.
pub fn size(mb: f64) -> String {
    format!("{mb} MB")
}

/// The rate of a file that the client fetches by HTTP, in Mbit/s, from start to end.
pub fn wget(place: &VariantNetwork, mb: f64) -> Result<Vec<Figure>> {
    let space = place.network().namespace(place.to).context("no namespace")?;
    let listener = space.enter(|| web::listen(place.far))?;
    let host = match place.far {
        IpAddr::V4(far) => far.to_string(),
        IpAddr::V6(far) => format!("[{far}]"),
    };
    let url = format!("http://{host}:{}/zeroes", web::PORT);
    let words = ["-q", "--tries=1", "--timeout=20", "--no-proxy", "-O", "/dev/null", &url];
    let (bytes, time) = std::thread::scope(|scope| {
        let served = scope.spawn(|| web::serve_bytes(&listener, (mb * 1e6) as usize));
        let said = place.run("wget", &words);
        let served = served.join().map_err(|_| anyhow!("the web server panicked"))?;
        said.context("is wget installed and in the search path?")?;
        served
    })?;
    let mbit = bytes as f64 * 8e-6 / time.as_secs_f64();
    Ok(vec![figure("wget_mbit", size(mb), mbit)])
}

/// The rate of one TCP stream with cubic, in Mbit/s.
pub fn tcp_mbit(place: &VariantNetwork, seconds: f64) -> Result<f64> {
    let seconds = seconds.to_string();
    let found = iperf(place, &["-t", &seconds, "-C", "cubic"])?;
    let rate = found["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(rate.context("iperf3 reports no rate")? / 1e6)
}

/// Sends `mb` million bytes of UDP at a rate; returns jitter in ms, and the share lost.
pub fn datagrams(place: &VariantNetwork, mb: f64, mbit: f64) -> Result<(f64, f64)> {
    let (bytes, rate) = (((mb * 1e6) as u64).to_string(), format!("{mbit}M"));
    let words = ["-u", "-w", "2M", "-l", PAYLOAD, "-b", &rate, "-n", &bytes, "--get-server-output"];
    let found = iperf(place, &words)?;
    let lost = found["end"]["sum"]["lost_percent"].as_f64().context("iperf3 reports no loss")?;
    let jitter = jitter_ms(&found).context("iperf3 reports no jitter")?;
    Ok((jitter, lost / 100.0))
}

/// The figures of UDP at a rate.
pub fn udp(place: &VariantNetwork, mb: f64, mbit: f64) -> Result<Vec<Figure>> {
    let ((jitter, lost), of) = (datagrams(place, mb, mbit)?, size(mb));
    Ok(vec![figure("udp_jitter_ms", &of, jitter), figure("udp_lost", &of, lost)])
}

/// The mean of the jitters that the server computes each tenth of a second. Each jitter covers only
/// the last sixteen packets (RFC 3550, section 6.4.1), even the one that iperf3 prints at the end.
fn jitter_ms(found: &serde_json::Value) -> Option<f64> {
    let intervals = found["server_output_json"]["intervals"].as_array()?;
    let each = intervals.iter().filter_map(|interval| interval["sum"]["jitter_ms"].as_f64());
    let each: Vec<f64> = each.collect();
    (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
}

fn iperf(place: &VariantNetwork, words: &[&str]) -> Result<serde_json::Value> {
    programs::iperf(place.network(), (place.from, place.to), place.far, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_read_with_each_round_trip_and_without() {
        let text = "64 bytes from ::1: icmp_seq=1 ttl=64 time=0.300 ms\n\
                    64 bytes from ::1: icmp_seq=2 ttl=64 time=0.100 ms\n\n\
                    --- ::1 ping statistics ---\n\
                    4 packets transmitted, 2 received, 50% packet loss, time 12ms\n\
                    rtt min/avg/max/mdev = 0.100/0.200/0.300/0.100 ms, pipe 2\n";
        let echoes = PingResults::read(text).unwrap();
        assert_eq!(echoes.each_ms, [0.1, 0.3]);
        assert_eq!((echoes.min_ms, echoes.mean_ms, echoes.max_ms), (0.1, 0.2, 0.3));
        let value = |name: &str| {
            let figures = echoes.figures("x");
            figures.into_iter().find(|figure| figure.name == name).map(|figure| figure.value)
        };
        assert_eq!((value("ping_lost"), value("ping_p999_ms")), (Some(0.5), Some(0.3)));
        assert_eq!(PingResults::read("ping: unknown host"), None);
        let mut both = PingResults::read(text).unwrap();
        both.add(PingResults { sent: 2.0, came: 1.0, each_ms: vec![0.2], ..echoes });
        assert_eq!((both.sent, both.came), (6.0, 3.0));
        assert!((both.mean_ms - 0.2).abs() < 1e-9, "{}", both.mean_ms);
        assert_eq!(both.each_ms, [0.1, 0.2, 0.3]);
        let quiet =
            PingResults::read("3 packets transmitted, 0 received, 100% packet loss").unwrap();
        assert!(quiet.mean_ms.is_nan() && quiet.figures("x").len() == 4);
    }

    #[test]
    fn jitter_is_the_mean_of_what_the_server_says() {
        let text = r#"{"server_output_json": {"intervals": [
            {"sum": {"jitter_ms": 0.1}}, {"sum": {}}, {"sum": {"jitter_ms": 0.3}}]}}"#;
        assert_eq!(jitter_ms(&serde_json::from_str(text).unwrap()), Some(0.2));
        assert_eq!(jitter_ms(&serde_json::Value::Null), None);
    }

    #[test]
    fn the_last_thousandth_is_what_lies_above() {
        let each_ms: Vec<f64> = (1..=2_000).map(f64::from).collect();
        let echoes =
            PingResults { sent: 2e3, came: 2e3, min_ms: 1.0, mean_ms: 1.0, max_ms: 2e3, each_ms };
        assert_eq!(echoes.figures("x")[4].value, 1_998.0);
    }
}
