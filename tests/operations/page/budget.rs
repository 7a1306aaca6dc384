//! The bar of a budget: what is spent, held and left.

use serde_json::json;

use super::{TEXT, change, has_row, open, picture, wait_until_live};
use support::client::hold_id;
use support::client::request;

use crate::admin::{Admin, setup};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 30, ttl: 10m}}
";

/// The widths of the bar's parts in hundredths, with their colours.
const BAR: &str = "return [...document.querySelectorAll('#act-counter .budget > span')].map((part) => [part.className, \
                   Math.round(100 * part.offsetWidth / part.parentElement.offsetWidth), \
                   getComputedStyle(part).backgroundColor])";

#[test]
fn the_bar_of_a_budget_shows_what_is_spent_held_and_left() {
    let (setup, port) = setup();
    let admin = Admin { server: setup.rules("shop.yaml", RULES).start(), port };
    let hold =
        || hold_id(&admin.server.ask(request("shop", &[&[("user", "ann")]])).unwrap()).expect("it fits");
    let first = hold();
    hold();
    let mut settle = request("shop", &[&[("hold_settle", &first)]]);
    settle.descriptors[0].hits_addend = Some(50);
    admin.server.ask(settle).unwrap();
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.click("[data-by=allowed]");
    browser.wait_for("the key is among the top", &has_row("top", &["user=ann", "Change…"]), TEXT);
    change(&browser);
    let bar = "document.querySelector('#act-counter .budget')";
    browser.wait_for("the bar is shown", bar, TEXT);
    assert_eq!(browser.run(&format!("return {bar}.title")), "50 spent, 30 held, 20 left");
    let text = browser.run("return document.getElementById('act-counter').textContent");
    assert!(text.as_str().unwrap().contains("50 spent, 30 held, 20 left"), "{text}");
    let parts = browser.run(BAR);
    let shown: Vec<_> = parts.as_array().unwrap().iter().map(|part| [&part[0], &part[1]]).collect();
    assert_eq!(json!(shown), json!([["spent", 50], ["held", 30], ["remaining", 20]]));
    let mut colours: Vec<_> = parts.as_array().unwrap().iter().map(|part| part[2].to_string()).collect();
    colours.sort();
    colours.dedup();
    assert_eq!(colours.len(), 3, "each part has a colour of its own: {parts}");
    picture(&browser, "budget");
    assert_eq!(browser.complaints(), [""; 0]);
}
