//! A short run of every target: what it takes to notice that a decoder became careless.

use fuzz::{run, target, Corpus, Limits, TARGETS};
use std::time::Duration;

#[test]
fn every_decoder_comes_back() {
    let corpus = Corpus::with_fixtures(true);
    let limits = Limits {
        executions: 20_000,
        time: Duration::from_millis(600),
    };
    let mut wrong = Vec::new();
    for t in TARGETS.iter().chain(target("fuse")) {
        let o = run(t, &corpus, 42, limits);
        for (what, input) in o.findings {
            wrong.push(format!(
                "{}: {what}: {} bytes {input:02x?}",
                t.name,
                input.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
