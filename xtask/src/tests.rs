use crate::layers::{self, Metadata};
use crate::named::{self, CodeIndex};
use crate::prose;
use crate::rules::{check_rust, check_text};
use crate::scan::{code_only, functions};
use crate::tidy::{AllowList, RuleBreach, undocumented, without_exceptions};

fn rules_of(findings: &[RuleBreach]) -> Vec<&'static str> {
    findings.iter().map(|f| f.rule).collect()
}

fn metadata(packages: &[(&str, &[&str])]) -> Metadata {
    let packages: Vec<_> = packages
        .iter()
        .map(|(name, deps)| {
            let deps: Vec<_> =
                deps.iter().map(|d| serde_json::json!({ "name": d, "kind": null })).collect();
            let manifest = format!("crates/{name}/Cargo.toml");
            serde_json::json!({ "name": name, "manifest_path": manifest, "dependencies": deps })
        })
        .collect();
    serde_json::from_value(serde_json::json!({ "packages": packages })).unwrap()
}

#[test]
fn blanking_keeps_lines_and_code() {
    let source =
        "let a = \"fn // no\"; // fn\nlet b = 'x'; /* fn\n /* */ */ let c: &'a str = r#\"\"fn\"#;";
    let code = code_only(source);
    assert_eq!(code.len(), source.len());
    assert_eq!(code.lines().count(), source.lines().count());
    assert!(!code.contains("fn") && !code.contains('x'));
    assert!(code.contains("let b =") && code.contains("&'a str"));
}

#[test]
fn blanking_knows_odd_literals() {
    assert_eq!(code_only(r#"b"\"" '\'' '"' b'\\' é"#).trim(), "é".trim());
    assert_eq!(code_only("r#fn r\"x\"").trim(), "r#fn");
    assert_eq!(code_only("'é' 'ab"), "     'ab");
    // An unterminated literal is blanked to the end, without a panic.
    for start in ["\"abc", "/* abc", "r##\"abc\"#", "b\"\\"] {
        assert_eq!(code_only(start).trim(), "");
    }
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let source =
        "trait T { fn a(&self) -> [u8; 2]; }\nfn b() {\n  if x { y() }\n}\nlet f: fn(u8) = b;";
    let all = functions(&code_only(source));
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].name.as_str(), all[0].line, all[0].lines), ("b", 2, 3));
}

#[test]
fn long_things_are_found() {
    let long_fn = format!("fn f() {{\n{}}}\n", "x();\n".repeat(69));
    assert_eq!(rules_of(&check_rust("crates/wire/src/a.rs", &long_fn)), ["function-length"]);
    let long_file = "x();\n".repeat(601);
    assert_eq!(rules_of(&check_rust("crates/wire/src/a.rs", &long_file)), ["file-length"]);
    let long_line = format!("{}\n", "x".repeat(101));
    assert_eq!(rules_of(&check_rust("crates/wire/src/a.rs", &long_line)), ["line-length"]);
}

#[test]
fn rust_examples_that_no_test_runs_are_refused() {
    let text = "/// ```text\n/// a -> b\n/// ```\nfn a() {}\n";
    assert!(check_rust("crates/wire/src/a.rs", text).is_empty());
    let code = "/// ```\n/// let a = 1;\n/// ```\nfn a() {}\n";
    assert_eq!(rules_of(&check_rust("crates/wire/src/a.rs", code)), ["examples"]);
    assert!(check_rust("crates/attribution/src/a.rs", code).is_empty());
}

#[test]
fn machines_may_not_reach_the_system() {
    let code = "use std::net::UdpSocket;\nfn f() { Instant::now(); }\n";
    assert_eq!(rules_of(&check_rust("crates/link/src/a.rs", code)), ["machine", "machine"]);
    assert!(check_rust("crates/daemon/src/a.rs", code).is_empty());
    assert!(check_rust("crates/link/tests/a.rs", code).is_empty());
    let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{ {code} }}");
    assert!(check_rust("crates/link/src/a.rs", &tested).is_empty());
    assert!(check_rust("crates/link/src/a.rs", "// an Instant\nstruct Instantly;").is_empty());
}

#[test]
fn unsafe_needs_a_shell_and_a_reason() {
    let bare = "unsafe { x() }";
    let good = "// SAFETY: x is fine\nunsafe { x() }";
    assert_eq!(rules_of(&check_rust("crates/link/src/a.rs", good)), ["unsafe"]);
    assert_eq!(rules_of(&check_rust("crates/daemon/src/a.rs", bare)), ["unsafe"]);
    assert!(check_rust("crates/daemon/src/a.rs", good).is_empty());
    assert!(check_rust("crates/crypto/src/bls.rs", good).is_empty());
}

#[test]
fn names_that_say_nothing_are_found() {
    let code = "struct LinkManager<T>(T);\nenum Egress { Handler }\ntype Util= u8;";
    assert_eq!(rules_of(&check_rust("crates/link/src/a.rs", code)), ["names", "names"]);
}

#[test]
fn unfinished_work_and_paths_of_a_machine_are_found() {
    let marker = concat!("// TO", "DO later\n");
    assert_eq!(rules_of(&check_text("docs/a.md", marker)), ["unfinished"]);
    let path = concat!("see /ho", "me/someone/x and /ro", "ot/.cargo\n");
    assert_eq!(rules_of(&check_text("docs/a.md", path)), ["paths", "paths"]);
    let fine = concat!("src/ho", "me/page, $ROOT/ro", "ot/x, /ho", "me/ alone\n");
    assert!(check_text("docs/a.md", fine).is_empty());
}

#[test]
fn the_plan_is_enforced() {
    let good = metadata(&[
        ("shoal-wire", &[]),
        ("shoal-relay", &["shoal-link", "shoal-wire", "thiserror"]),
        ("shoal-cli", &["shoal-daemon", "shoal-crypto", "tokio"]),
        ("shoal-lab", &["shoal-cli", "shoal-sim"]),
    ]);
    assert_eq!(layers::check(&good), []);
    for (name, dependency) in [
        ("shoal-relay", "shoal-edge"),
        ("shoal-relay", "shoal-transfer"),
        ("shoal-daemon", "shoal-cli"),
        ("shoal-cli", "shoal-lab"),
        ("shoal-cli", "shoal-sim"),
        ("shoal-lab", "shoal-e2e"),
        ("shoal-session", "tokio"),
        ("shoal-manager", "shoal-wire"),
    ] {
        assert_eq!(layers::check(&metadata(&[(name, &[dependency])])).len(), 1, "{name}");
    }
}

#[test]
fn exceptions_need_reason_and_use() {
    let finding = || RuleBreach::new("file-length", "a.rs", 0, String::new());
    let list = |text: &str| toml::from_str::<AllowList>(text).unwrap();
    let entry = "[[allow]]\nrule = 'file-length'\npath = 'a.rs'\nreason = ";
    let good = list(&format!("{entry}'one table that reads as a whole'"));
    assert_eq!(without_exceptions(vec![finding()], &good), []);
    assert_eq!(without_exceptions(vec![], &good).len(), 1);
    assert_eq!(without_exceptions(vec![finding()], &list(&format!("{entry}''"))).len(), 1);
    assert_eq!(without_exceptions(vec![finding()], &AllowList::default()), [finding()]);
}

#[test]
fn dependencies_are_documented() {
    let manifest = "[workspace.dependencies]\na = '1'\nb = { path = 'b' }\nc = { version = '1' }\n";
    assert_eq!(undocumented(manifest, "| `a` | why |").unwrap(), ["c"]);
}

#[test]
fn the_architecture_names_what_exists() {
    let mut code = CodeIndex::default();
    code.add("crates/wire/src/a.rs", "pub fn cut() { flag(SO_MARK); }\nstruct Sink;");
    code.add("docs/wire.md", "");
    let house = metadata(&[("shoal-wire", &[]), ("shoal-relay", &["shoal-wire"])]);
    let table = "| `wire` | machine | bytes |\n| `relay` | machine | cells |\n";
    let page = |says: &str| format!("{table}{}\n{says}\n", named::picture(&house));
    for says in
        ["`wire/a.rs`", "`wire/a.rs: cut`", "`Sink`", "`SO_MARK`", "`wire`", "`cargo run`", "`1.0`"]
    {
        assert_eq!(named::check(&page(says), &code, &house), [], "{says}");
    }
    for says in ["`wire/b.rs`", "`wire/a.rs: paste`", "`flag_it`", "`Source`", "`SO_NONE`"] {
        assert_eq!(named::check(&page(says), &code, &house).len(), 1, "{says}");
    }
    let check = |page: &str| named::check(page, &code, &house).len();
    assert_eq!(check(&page("").replace("| `relay` | machine", "| `relay` | shell")), 1);
    assert_eq!(check(&page("| `mix` | machine | none |")), 2, "no crate, no name");
    assert_eq!(check(&page("").replace("| `wire` | machine | bytes |", "")), 1);
    assert_eq!(check(&page("").replace("relay           wire", "relay")), 1);
}

#[test]
fn the_picture_leaves_out_what_others_bring_along() {
    let house = metadata(&[
        ("shoal-relay", &["shoal-wire", "shoal-link"]),
        ("shoal-link", &["shoal-wire"]),
        ("shoal-wire", &[]),
    ]);
    let expected = "crate           stands on\nwire\nlink            wire\nrelay           link\n";
    assert_eq!(named::picture(&house), expected);
}

#[test]
fn texts_that_begin_without_their_noun_are_found() {
    let source = [
        "/// Of these,\n/// two.\nfn f() {}\n",
        "// It is so\nlet a = \"which of these is it\";\nlet b = \"of {n}\";\n",
        "/// Its. Offers stand.\n//! The same as\n/// Whether so.\n/// Italy.\n",
    ]
    .concat();
    let found = prose::check("crates/wire/src/a.rs", &source);
    let lines: Vec<usize> = found.iter().map(|f| f.line).collect();
    assert_eq!(lines, [1, 4, 5, 7, 8]);
    assert_eq!(rules_of(&found), ["openings"; 5]);
}

#[test]
fn sentences_are_counted_by_their_words() {
    let page = [
        "# No heading\n\nOne two. Version 1.4 of `wire.md` holds.\n\n",
        "| a cell here | b |\n|--|--|\n",
        "```text\nno words of a picture\n```\n- an item\n- another one\n",
    ]
    .concat();
    let report = prose::report(&[("docs/a.md".to_owned(), page)], &[]);
    let row: Vec<&str> = report.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row, ["docs/", "0", "5", "2", "0.0%"]);
}
