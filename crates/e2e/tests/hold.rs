//! Routers that hold every cell for 5 ms, as mixes will: files and programs keep their rate.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "starts real programs")]

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use shoal_daemon::control::api::{Command as Ask, Reply, Status};
use shoal_e2e::{bytes, end_of, text};
use shoal_lab::site::Site;
use shoal_lab::{Conditions, Executable, Kind, Network, Rate, Topology};

const PATIENCE: Duration = Duration::from_secs(30);
const EXTRA: &str = "[interface]\n[data]\nworkers = 2\n[session]\nlanes = 4\n";
const HOLD: &str = "[expert]\nhold_ms = 5\n";
const LEN: usize = 30_000_000;

struct Net {
    site: Site,
    folder: tempfile::TempDir,
}

impl Net {
    /// h1, h2 -- r1 -- r2 -- h3, h4 over links of 100 Mbit/s; `routers` is more of the routers'
    /// configuration.
    fn new(routers: &str) -> Net {
        let folder = tempfile::tempdir().unwrap();
        let conditions = Conditions { rate: Some(Rate(100_000_000)), ..Conditions::default() };
        let network = Network::build(Topology::pairs(2), Kind::Namespaces, conditions).unwrap();
        let executable = Executable::shoal(shoal_e2e::program());
        let change = |_: &Network, folder: &std::path::Path| {
            for name in ["r1", "r2"] {
                let file = folder.join(name).join("node.toml");
                OpenOptions::new().append(true).open(file)?.write_all(routers.as_bytes())?;
            }
            Ok(())
        };
        let mut site =
            Site::start_after(network, &executable, folder.path(), EXTRA, change).unwrap();
        site.wait_until_up(PATIENCE).unwrap_or_else(|e| panic!("{e:#}"));
        Net { site, folder }
    }

    fn find(&self, name: &str) -> usize {
        self.site.network().topology().find(name).unwrap()
    }

    fn status(&self, name: &str) -> Status {
        match self.site.ask(self.find(name), Ask::Status) {
            Ok(Reply::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn metric(&self, name: &str, what: &str) -> f64 {
        let Ok(Reply::Metrics(text)) = self.site.ask(self.find(name), Ask::Metrics) else {
            panic!("no metrics")
        };
        let line = text.lines().find(|line| line.starts_with(what)).unwrap_or_default();
        line.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    /// How long a file takes from h1 to h3.
    fn file(&self, round: u8) -> Duration {
        let name = format!("file-{round}");
        let (file, inbox) = (self.folder.path().join(&name), self.folder.path().join("in"));
        std::fs::write(&file, bytes(round, LEN)).unwrap();
        std::fs::create_dir_all(&inbox).unwrap();
        let words = ["receive", "--count", "1", "--from", "h1", "--dir", inbox.to_str().unwrap()];
        let mut receive = self.site.command(self.find("h3"), &words);
        let receive = receive.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        let mut send = self.site.command(self.find("h1"), &["send", "--wait", "20"]);
        send.arg(&file).arg("h3").stdout(Stdio::null()).stderr(Stdio::piped());
        let sent = end_of(send.spawn().unwrap(), "send");
        let took = began.elapsed();
        assert!(sent.status.success(), "{}", text(&sent).1);
        assert!(end_of(receive, "receive").status.success());
        assert!(std::fs::read(inbox.join(&name)).unwrap() == bytes(round, LEN));
        took
    }

    fn inside<T: Send>(&self, name: &str, f: impl FnOnce() -> T + Send) -> T {
        let node = self.find(name);
        self.site.network().namespace(node).unwrap().enter(|| Ok(f())).unwrap()
    }

    /// How long a stream of as many bytes takes between programs at h2 and h4.
    fn stream(&self, port: u16) -> Duration {
        let address: Ipv6Addr = self.status("h4").interface.unwrap().address.parse().unwrap();
        let at = SocketAddr::from((address, port));
        let listener = self.inside("h4", || TcpListener::bind(at).unwrap());
        let mut near = self.inside("h2", || TcpStream::connect_timeout(&at, PATIENCE).unwrap());
        let mut far = listener.accept().unwrap().0;
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                near.write_all(&bytes(9, LEN)).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            far.set_read_timeout(Some(PATIENCE)).unwrap();
            far.read_to_end(&mut got).unwrap();
            assert!(got == bytes(9, LEN));
        });
        began.elapsed()
    }

    /// Cells that routers marked.
    fn marks(&self) -> f64 {
        ["r1", "r2"].map(|name| self.metric(name, "shoal_cells_marked_total")).iter().sum()
    }

    /// Medians of three: a file, then a stream; and the marks after each.
    fn times(&self) -> ([Duration; 2], [f64; 2]) {
        let median = |mut times: [Duration; 3]| {
            times.sort_unstable();
            times[1]
        };
        let (file, files_marks) = (median([1, 2, 3].map(|n| self.file(n))), self.marks());
        let stream = median([1, 2, 3].map(|n| self.stream(7_200 + n)));
        ([file, stream], [files_marks, self.marks()])
    }
}

#[test]
fn files_and_programs_keep_their_rate_through_routers_that_hold_cells() {
    if !shoal_e2e::tun_possible() {
        return;
    }
    let (without, marks_without) = Net::new("").times();
    let net = Net::new(HOLD);
    let established = "shoal_handshakes_total{with=\"link\",outcome=\"established\"}";
    let before = ["r1", "r2"].map(|name| net.metric(name, established));
    let (with, marks) = net.times();
    println!("{without:?}, marks {marks_without:?}; held {with:?}, marks {marks:?}");
    for name in ["r1", "r2"] {
        // Six times 30 MB, and the cells that go back.
        assert!(net.metric(name, "shoal_cells_held_total") > 120_000.0);
        let status = net.status(name);
        assert_eq!((status.links, status.links_up), (3, 3));
        let held = ["hold_full", "queue_full", "other_worker"];
        let lost: Vec<_> = status.drops.iter().filter(|(why, _)| held.contains(&&**why)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
    assert_eq!(["r1", "r2"].map(|name| net.metric(name, established)), before, "a link was lost");
    // On a busy machine a kernel's queue stands now and then, with or without a hold.
    let cells = net.metric("r1", "shoal_cells_held_total");
    assert!(marks[1] < marks_without[1] + 0.1 * cells, "{marks_without:?}, held {marks:?}");
    for (without, with) in without.into_iter().zip(with) {
        assert!(with.as_secs_f64() * 0.8 < without.as_secs_f64(), "{without:?}, held {with:?}");
    }
    let ping = net.site.command(net.find("h1"), &["ping", "h3", "-n", "3"]).output().unwrap();
    assert!(ping.status.success());
}
