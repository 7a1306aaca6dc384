//! The dialog for a rule with several limits: one of them or a part of all is changed, and all are shown before and after.

use super::{TEXT, change, confirm, has_row, open, picture, wait_until_live};
use crate::admin::{Admin, setup};
use support::{client::request, http};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit:
      - {name: burst, unit: hour, requests_per_unit: 20}
      - {name: quota, unit: year, requests_per_unit: 5000}
";

#[test]
fn one_limit_is_halved_and_the_dialog_shows_all_before_and_after() {
    let (setup, port) = setup();
    let admin = Admin { server: setup.rules("shop.yaml", RULES).start(), port };
    admin.server.ask(request("shop", &[&[("user", "ann")]])).unwrap();
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.click("[data-by=allowed]");
    browser.wait_for("the key is among the top", &has_row("top", &["user=ann", "Change…"]), TEXT);
    change(&browser);
    let names = "document.getElementById('act-name').innerText";
    browser.wait_for(
        "the limits can be chosen",
        &format!("{names}.includes('only burst: 20 per hour')"),
        names,
    );
    let limits = "document.getElementById('act-limits').innerText.replaceAll('\\n', ' ')";
    let before = "Before 20 per hour (burst), 5,000 per year (quota)";

    browser.click("input[value=limit]");
    browser.run("document.getElementById('act-number').value = '10'; document.getElementById('act-number').dispatchEvent(new Event('input', {bubbles: true}))");
    let expected = format!("{limits}.startsWith('{before} After 10 per hour (burst)')");
    browser.wait_for("a limit for all replaces both", &expected, limits);
    let effect = "document.getElementById('act-effect').textContent";
    assert!(browser.run(&format!("return {effect}")).as_str().unwrap().contains("This replaces all limits"));

    browser.click("input[value=scale]");
    let expected =
        format!("{limits}.startsWith('{before} After 10 per hour (burst), 2,500 per year (quota)')");
    browser.wait_for("half of all", &expected, limits);
    browser.run("const name = document.getElementById('act-name'); name.value = 'burst'; name.dispatchEvent(new Event('input', {bubbles: true}))");
    let expected =
        format!("{limits}.startsWith('{before} After 10 per hour (burst), 5,000 per year (quota)')");
    browser.wait_for("half of one", &expected, limits);
    assert_eq!(http::get(port, "/api/v1/overrides").json()["total"], 0, "nothing is set yet");
    picture(&browser, "limits");
    browser.type_into("#act-for", "1h");
    confirm(&browser);
    browser.wait_for("it is listed", &has_row("overrides", &["user=ann", "scale burst to 50%"]), TEXT);
    let one = http::get(port, "/api/v1/overrides").json()["overrides"][0].clone();
    assert_eq!((one["name"].as_str(), one["scale"].as_str()), (Some("burst"), Some("50%")), "{one}");
    assert_eq!(browser.complaints(), [""; 0]);
}
