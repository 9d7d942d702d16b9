//! Replays the committed corpora as regression tests.

use std::path::Path;

#[test]
fn every_corpus_replays() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in crate::CASES {
        let folder = corpora.join(name);
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{name} has no corpus in {}: {e}", folder.display()));
        let mut replayed = 0;
        for entry in entries {
            let path = entry.expect("a readable corpus folder").path();
            target(&std::fs::read(&path).expect("a readable corpus file"));
            replayed += 1;
        }
        assert!(replayed > 0, "the corpus of {name} is empty: cargo xtask fuzz --minutes 1");
    }
}
