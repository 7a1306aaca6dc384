//! Runs replicas of the service under a seeded clock, network and Redis: docs/dev/simulation.md.

#![expect(clippy::cast_precision_loss, clippy::expect_used, reason = "figures for people, of a test")]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use clap::Parser;

use simulate::{
    checks::Invariant,
    fleet::Fleet,
    limits::LimitPlan,
    plan::{Action, Plan, Scenario},
    shrink::shrink,
    simulation::{Outcome, Simulation},
};

#[derive(Parser, Debug)]
struct Arguments {
    /// Runs seeds 1 to N, and stops at the first violation.
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    seeds: Option<u64>,
    /// Runs one seed.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Runs a recorded plan: the JSON that a violation prints.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "scenario"])]
    plan: Option<PathBuf>,
    /// Prints a hash of all events as the last line.
    #[arg(long)]
    trace_hash: bool,
    /// Runs this scenario instead of the one that the seed stands for, or `fleet`, which has no seed.
    #[arg(long, value_name = "NAME", value_parser = scenario)]
    scenario: Option<Chosen>,
    /// The replicas of `fleet`.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    replicas: u16,
    /// Decisions per second of all replicas of `fleet`.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    rate: u64,
    /// The simulated seconds of `fleet`.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..60))]
    seconds: u64,
}

#[derive(Clone, Copy, Debug)]
enum Chosen {
    Planned(Scenario),
    Fleet,
}

const FLEET: &str = "fleet";

fn scenario(name: &str) -> Result<Chosen, String> {
    let mut all = Scenario::ALL.into_iter();
    match all.find(|one| one.name() == name) {
        Some(planned) => Ok(Chosen::Planned(planned)),
        None if name == FLEET => Ok(Chosen::Fleet),
        None => {
            let names: Vec<_> = Scenario::ALL.iter().map(|one| one.name()).chain([FLEET]).collect();
            Err(format!("expected one of {}", names.join(", ")))
        }
    }
}

fn run_fleet(fleet: Fleet) -> ExitCode {
    let row = fleet.run();
    println!("{row}");
    match row.violation() {
        Some(what) => {
            println!("violation: invariant=limit scenario={FLEET}: {what}");
            ExitCode::from(1)
        }
        None => ExitCode::SUCCESS,
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(file) = &arguments.plan {
        return run_recorded(file, arguments.trace_hash);
    }
    let scenario = match arguments.scenario {
        Some(Chosen::Fleet) => {
            let Arguments { replicas, rate, seconds, .. } = arguments;
            return run_fleet(Fleet { replicas: replicas.into(), rate, seconds });
        }
        Some(Chosen::Planned(planned)) => Some(planned),
        None => None,
    };
    let seeds = match arguments.seed {
        Some(seed) => seed..=seed,
        None => 1..=arguments.seeds.unwrap_or(1),
    };
    let began = Instant::now();
    let mut total = Total::default();
    for seed in seeds {
        let plan = Plan::of(seed, scenario);
        let outcome = Simulation::run(&plan, false);
        total.add(&outcome);
        if let Some(violation) = &outcome.violation {
            tell(&shrink(&plan, violation));
            if arguments.trace_hash {
                println!("{:016x}", total.hash);
            }
            return ExitCode::from(1);
        }
    }
    total.print(began.elapsed().as_secs_f64());
    if arguments.trace_hash {
        println!("{:016x}", total.hash);
    }
    ExitCode::SUCCESS
}

/// Runs a recorded plan as it is.
fn run_recorded(file: &Path, has_hash: bool) -> ExitCode {
    let plan = match std::fs::read(file).map_err(|error| error.to_string()) {
        Ok(bytes) => serde_json::from_slice::<Plan>(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let outcome = Simulation::run(&plan, false);
    if outcome.violation.is_some() {
        tell(&plan);
        return ExitCode::from(1);
    }
    let mut total = Total::default();
    total.add(&outcome);
    total.print(began.elapsed().as_secs_f64());
    if has_hash {
        println!("{:016x}", total.hash);
    }
    ExitCode::SUCCESS
}

/// Prints the story of a violation.
fn tell(plan: &Plan) {
    let outcome = Simulation::run(plan, true);
    let Some(violation) = &outcome.violation else {
        println!("the violation did not repeat: the simulation is not deterministic");
        return;
    };
    outcome.lines.iter().for_each(|line| println!("{line}"));
    println!();
    println!("plan: {}", serde_json::to_string(plan).expect("a plan is JSON"));
    println!(
        "violation: invariant={} seed={} scenario={} at={:.6} s: {}",
        violation.invariant.name(),
        plan.seed,
        plan.scenario.name(),
        violation.at as f64 / 1e6,
        violation.what
    );
}

#[derive(Default)]
struct Total {
    hash: u64,
    seeds: u64,
    answers: u64,
    failures: u64,
    simulated: u64,
    demanded: u64,
    unused: u64,
    happened: [u64; Action::NAMES.len()],
    by_kind: [u64; LimitPlan::KINDS.len()],
    tested: [u64; Invariant::ALL.len()],
}

impl Total {
    fn add(&mut self, outcome: &Outcome) {
        self.hash = self.hash.rotate_left(1) ^ outcome.hash;
        self.seeds += 1;
        self.answers += outcome.answers;
        self.failures += outcome.failures;
        self.simulated += outcome.simulated;
        self.demanded += outcome.demanded;
        self.unused += outcome.unused;
        self.happened.iter_mut().zip(outcome.happened).for_each(|(sum, one)| *sum += one);
        self.by_kind.iter_mut().zip(outcome.by_kind).for_each(|(sum, one)| *sum += one);
        self.tested.iter_mut().zip(outcome.checks.tested).for_each(|(sum, one)| *sum += one);
    }

    fn print(&self, seconds: f64) {
        let simulated = self.simulated as f64 / 1e6;
        println!(
            "{} seeds, {simulated:.0} simulated seconds in {seconds:.1} s ({:.0} per second), {} answers, {} of them by \
             the failure policy",
            self.seeds,
            simulated / seconds.max(1e-9),
            self.answers,
            self.failures
        );
        println!(
            "{} of {} hits of demanded limits were not admitted ({:.2} %)",
            self.unused,
            self.demanded,
            100.0 * self.unused as f64 / self.demanded.max(1) as f64
        );
        for (name, count) in Action::NAMES.iter().zip(self.happened) {
            println!("action     {name:<24} {count}");
        }
        for (name, count) in LimitPlan::KINDS.iter().zip(self.by_kind) {
            println!("answers    {name:<24} {count}");
        }
        for (invariant, count) in Invariant::ALL.iter().zip(self.tested) {
            println!("invariant  {:<24} {count}", invariant.name());
        }
    }
}
