//! Why a request was refused: every request with a value, what refused it, and one exemption from all of it.

use std::fmt::Write as _;

use super::*;
use support::{
    browser::Browser,
    eventually, holds,
    process::{assert_exit, printed},
};

const RULES: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: ip
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 8}
";

fn start(variables: &[(&str, &str)]) -> Admin {
    let (setup, port) = setup();
    let setup = setup.rules("shop.yaml", RULES);
    let setup = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    Admin { server: setup.start(), port }
}

/// Sends a request of a user from an address, and returns whether it was refused.
fn ask(admin: &Admin, user: &str, ip: &str) -> bool {
    let descriptors: [&[(&str, &str)]; 3] = [&[("user", user)], &[("ip", ip)], &[("path", "/cart")]];
    admin.server.ask(request("shop", &descriptors)).unwrap().overall_code() == Code::OverLimit
}

/// The reply once it has as many requests.
fn why(admin: &Admin, value: &str, requests: u64) -> Value {
    eventually("the requests are recorded", || {
        let reply = admin.get(&format!("/api/v1/why?value={value}"));
        holds(reply["requests"][0]["requests"] == requests, || reply.to_string()).map(|()| reply)
    })
}

#[test]
fn an_exemption_is_from_all_limits_that_the_requests_meet() {
    let admin = start(&[]);
    assert!(!ask(&admin, "bob", "10.0.0.2"));
    assert_eq!((0..5).filter(|_| ask(&admin, "ann", "10.0.0.1")).count(), 3);
    let reply = why(&admin, "ann", 5);
    let descriptors = reply["requests"][0]["descriptors"].as_array().unwrap();
    let [user, ip, path] = descriptors.as_slice() else { panic!("{reply}") };
    assert_eq!((&user["limits"][0], &user["line"]), (&"2 per hour".into(), &3.into()), "{user}");
    assert_eq!(
        (&user["refused"]["count"], &user["refused"]["reason"]),
        (&3.into(), &"over 2 per hour".into())
    );
    assert_eq!((&ip["refused"]["count"], &ip["others"]), (&2.into(), &0.into()), "{ip}");
    assert_eq!((&path["others"], &path["refused"]), (&1.into(), &Value::Null), "{path}");
    // The path is that of others, too.
    let exemption = serde_json::json!([
        {"domain": "shop", "descriptor": [{"key": "ip", "value": "10.0.0.1"}]},
        {"domain": "shop", "entry": {"key": "user", "value": "ann"}},
    ]);
    let sorted = |list: &Value| {
        let mut list = list.as_array().unwrap().clone();
        list.sort_by_key(ToString::to_string);
        list
    };
    assert_eq!(sorted(&reply["exemption"]), sorted(&exemption), "{reply}");
    // The address finds the same requests, and with them the user.
    assert_eq!(why(&admin, "10.0.0.1", 5)["requests"], reply["requests"]);
    assert_exit(&admin.run(&["why", "ann"]), 0, &["shop 5 requests from ", "refused 3 times since "]);
    assert_exit(&admin.run(&["why", "ann", "--exempt"]), 2, &[]);
    assert_exit(&admin.run(&["why", "nobody"]), 1, &["no recorded request and no refusal has this value"]);
    let exempted = admin.run(&["why", "ann", "--exempt", "--for", "1h", "--reason", "launch"]);
    assert_exit(&exempted, 0, &["any descriptor with user=ann in shop: ", "ip=10.0.0.1 in shop: "]);
    assert!((0..2).all(|_| !ask(&admin, "ann", "10.0.0.1")), "{}", printed(&exempted));
    let reply = why(&admin, "ann", 7);
    let by = &reply["requests"][0]["descriptors"][0]["override"];
    assert_eq!((&by["action"], &by["reason"]), (&"allow".into(), &"launch".into()), "{by}");
    assert_exit(&admin.run(&["why", "ann"]), 0, &[": launch"]);
}

#[test]
fn hashed_values_are_found_and_hidden_ones_are_not() {
    let admin = start(&[("KEY_VALUES", "hashed")]);
    ask(&admin, "ann", "10.0.0.1");
    let reply = why(&admin, "ann", 1);
    assert!(!reply["requests"].to_string().contains("ann"), "{reply}");
    let entry = serde_json::json!({"domain": "shop", "entry": {"key": "user", "value": "ann"}});
    assert_eq!(reply["exemption"], serde_json::json!([entry]), "the caller has named it");
    let admin = start(&[("KEY_VALUES", "hidden")]);
    assert_eq!(http::get(admin.port, "/api/v1/why?value=ann").status, 409);
    assert_eq!(http::get(admin.port, "/api/v1/why").status, 400);
}

#[test]
fn values_of_callers_are_found_whatever_they_are() {
    let admin = start(&[]);
    for value in ["a\"b\\c", "ä\u{0}\n", "\"}],\"hits\":1", "a b&c=d#e"] {
        ask(&admin, value, "10.0.0.9");
        let mut query = String::new();
        value.bytes().for_each(|byte| write!(query, "%{byte:02X}").unwrap());
        let reply = why(&admin, &query, 1);
        assert_eq!(reply["requests"].as_array().unwrap().len(), 1, "{reply}");
        let found = &reply["requests"][0]["descriptors"][0]["descriptor"][0]["value"];
        assert_eq!(found, value);
    }
}

#[test]
fn a_request_of_many_kilobytes_is_counted_and_not_listed() {
    let admin = start(&[]);
    let long = "x".repeat(20 << 10);
    ask(&admin, "ann", &long);
    ask(&admin, "ann", "10.0.0.1");
    let reply = why(&admin, "ann", 1);
    assert_eq!((&reply["more"], reply["requests"].as_array().unwrap().len()), (&1.into(), 1), "{reply}");
}

#[test]
fn the_page_shows_the_requests_of_a_value_and_exempts_them() {
    let admin = start(&[]);
    for _ in 0..5 {
        ask(&admin, "ann", "10.0.0.1");
    }
    why(&admin, "ann", 5);
    let browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{}/", admin.port));
    let text = "document.body.innerText";
    browser.wait_for("it is live", "document.getElementById('live').dataset.state === 'live'", text);
    browser.run(
        "const field = document.getElementById('search'); field.value = 'user=ann'; field.dispatchEvent(new Event('input'))",
    );
    let link = "[...document.querySelectorAll('#found a')].find((one) => one.hash.startsWith('#why='))";
    browser.wait_for("the search offers the requests", &format!("Boolean({link})"), text);
    browser.run(&format!("{link}.click()"));
    let shown = "document.getElementById('why').innerText";
    browser.wait_for("the refusals are shown", &format!("{shown}.includes('refused 3 times since')"), shown);
    browser.run("document.getElementById('why-confirm').click()");
    browser.wait_for(
        "the exemption is shown",
        "document.querySelectorAll('#why .badge.allow').length > 1",
        shown,
    );
    assert!(!ask(&admin, "ann", "10.0.0.1"));
}
