//! The table of what was spent.

use std::io;

use crate::spending::{Budget, budget};

/// Prints a table of all budgets.
pub(crate) fn print(admin: u16, teams: &[&str], keys: &[&str]) -> io::Result<()> {
    println!("\n{:<10} {:<22} {:>12} {:>12} {:>12}", "", "budget", "spent", "held", "limit");
    for team in teams {
        row(admin, team, "team_dollars", "dollars a month")?;
    }
    for key in keys {
        row(admin, key, "key_dollars", "dollars a day")?;
        row(admin, key, "key_tokens", "tokens a minute")?;
        row(admin, key, "key_streams", "streams at a time")?;
    }
    Ok(())
}

fn row(admin: u16, value: &str, key: &str, name: &str) -> io::Result<()> {
    let Budget { limit, spent, held } = budget(admin, key, value)?;
    let shown = |number: u64| {
        let is_money = key.ends_with("dollars");
        if is_money {
            format!("${}.{:06}", number / 1_000_000, number % 1_000_000)
        } else {
            number.to_string()
        }
    };
    println!("{value:<10} {name:<22} {:>12} {:>12} {:>12}", shown(spent), shown(held), shown(limit));
    Ok(())
}
