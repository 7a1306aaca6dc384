//! Holds the cost of random scripts to its bounds.

use std::{cell::Cell, env};

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};

use super::{Cost, Script};

fn number(name: &str, default: u32) -> u32 {
    env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// Runs random scripts, the same in every run: `TOLLGATE_TEST_SCRIPTS` sets their number, and `TOLLGATE_TEST_SEED` selects
/// others.
pub fn hold(cases: u32, paths: &'static [&'static str], run: impl Fn(&[u8]) -> Result<Cost, String>) {
    let cases = number("TOLLGATE_TEST_SCRIPTS", cases);
    let [a, b, c, d] = number("TOLLGATE_TEST_SEED", 7).to_be_bytes();
    let seed = [[a, b, c, d]; 8].concat();
    let config = Config { cases, max_shrink_iters: 3000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let tried = Cell::new(0);
    let found = Cell::new(0);
    let worst = Cell::new((0, 0));
    let ended = runner.run(&prop::collection::vec(any::<u8>(), 0..800), |bytes| {
        tried.set(tried.get() + 1);
        match run(&bytes) {
            Ok(cost) => {
                // In hundredths of the bound.
                worst.set(worst.get().max((cost.load(), cost.received)));
                Ok(())
            }
            Err(excess) => {
                found.set(if found.get() == 0 { tried.get() } else { found.get() });
                Err(TestCaseError::fail(excess))
            }
        }
    });
    println!("{} scripts, the costliest {:?}", tried.get(), worst.get());
    if let Err(TestError::Fail(excess, bytes)) = ended {
        let steps: String =
            format!("{:?}", Script::new(&bytes, paths).collect::<Vec<_>>()).chars().take(2000).collect();
        panic!("{excess}, found by script {}: {bytes:?}: {steps}", found.get());
    }
}
