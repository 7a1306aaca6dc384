//! A million overrides: the time of an import, and the memory. Prints the figures.

use std::{fmt::Write as _, time::Instant};

use super::*;

/// A file of overrides for `count` customers.
fn file(dir: &Path, count: usize) -> String {
    let mut text = String::with_capacity(count * 110);
    text.push_str("domain,descriptor,action,requests_per_unit,unit\n");
    for n in 0..count {
        writeln!(text, "shop,customer=customer-{n:07},limit,{},minute", n % 1000).unwrap();
    }
    let path = dir.join("customers.csv");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The resident memory of the process, in bytes.
fn resident(replica: &Replica) -> u64 {
    replica.get("/api/v1/status")["memory"]["resident_bytes"].as_u64().unwrap()
}

fn import(replica: &Replica, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), count);
    let before = resident(replica);
    let begun = Instant::now();
    let text = replica.tollgate(&["override", "import", &path]);
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = replica.server.metrics()["tollgate_overrides_bytes"];
    println!(
        "{text}  {seconds:.1} s with the check; index {bytes} bytes; resident {before} -> {} bytes",
        resident(replica)
    );
    assert_eq!(replica.get("/api/v1/overrides?n=1")["total"], count);
    #[expect(clippy::cast_precision_loss, reason = "a bound")]
    let per_override = bytes / count as f64;
    assert!(per_override < 300.0, "{per_override} bytes for each");
    let last = format!("customer-{:07}", count - 1);
    let answer = replica.server.ask(request("shop", &[&[("customer", &last)]])).unwrap();
    let limit = answer.statuses[0].current_limit.as_ref().unwrap().requests_per_unit;
    assert_eq!(limit as usize, (count - 1) % 1000);
}

#[test]
fn ten_thousand_are_imported_in_memory() {
    import(&Replica::in_memory(), 10_000);
}

#[test]
fn ten_thousand_are_imported_into_redis() {
    import(&Replica::on(&Redis::single()), 10_000);
}
