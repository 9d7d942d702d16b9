//! Tests of the page in a real browser. Without Chromium the tests are skipped and print a line;
//! SHOAL_REQUIRE_BROWSER=1 makes a skip a failure.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::tests::{PAPER, full};
use super::{compare, model, page};
use crate::needs::{self, Requirement};

/// A script that inspects the page after layout, and writes the result into the page's title, which
/// `--dump-dom` prints. Only the test adds this script: the page itself has none.
const PROBE: &str = "<script>addEventListener('load', () => {
const plots = [...document.querySelectorAll('.plot svg')];
for (const d of document.querySelectorAll('details')) d.open = true;
const seen = plots.filter(s => s.getBoundingClientRect().width > 100 &&
    s.getBoundingClientRect().height > 10 && s.getBBox().width > 50);
const flat = [...document.querySelectorAll('path.curve')].filter(p => p.getTotalLength() < 10);
const wide = document.documentElement.scrollWidth > innerWidth + 1;
const ink = getComputedStyle(document.body).color;
console.info('the console is heard');
document.title = JSON.stringify(
    {all: plots.length, seen: seen.length, flat: flat.length, wide, ink});
});</script>";

fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let found = names.into_iter().find_map(needs::find);
    if found.is_none() {
        needs::met(&[Requirement::Tool("chromium")], "SHOAL_REQUIRE_BROWSER");
    }
    found
}

/// The script's result, and the browser's console output.
fn ask(browser: &PathBuf, page: &str, width: u32, dark: bool) -> (serde_json::Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    std::fs::write(&file, page.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    command.args(["--virtual-time-budget=2000", "--dump-dom", "--v=0"]);
    command.arg(format!("--window-size={width},900"));
    command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let output = command.arg(&file).stdin(Stdio::null()).output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let title = dom.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    let title = title.unwrap_or_else(|| panic!("no page came out: {dom:.300}")).0;
    let answer = serde_json::from_str(&title.replace("&quot;", "\""));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (answer.unwrap_or_else(|e| panic!("{e}: {title}\n{said}")), said)
}

#[test]
fn every_plot_is_drawn_and_the_console_is_silent() {
    let Some(browser) = browser() else { return };
    let report = full();
    let pages = [(page(&report), 16), (compare(&report, &report), 24), (model(&PAPER), 13)];
    for (page, plots) in pages {
        let mut inks = Vec::new();
        for (width, dark) in [(1_200, false), (400, true)] {
            let (answer, said) = ask(&browser, &page, width, dark);
            assert_eq!(answer["all"], plots, "{answer}");
            assert_eq!(answer["seen"], answer["all"], "{answer}");
            assert_eq!(answer["flat"], 0, "a curve without length: {answer}");
            assert_eq!(answer["wide"], false, "the page is wider than {width}: {answer}");
            let console: Vec<&str> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
            assert_eq!(console.len(), 1, "{console:?}");
            assert!(console[0].contains("the console is heard"), "{console:?}");
            inks.push(answer["ink"].to_string());
        }
        assert_ne!(inks[0], inks[1], "light and dark look the same");
    }
}
