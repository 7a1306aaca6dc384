//! The page for a key, the search, the filters, and a service that is gone.

use std::process::Command;

use super::{
    Admin, CONTRAST, NAMES, TEXT, Traffic, Value, confirm, has_row, http, open, picture, wait_until_live,
};
use crate::admin::setup;
use support::eventually;

/// Types into the search, and waits until a result has this text.
fn search(browser: &super::Browser, text: &str, found: &str) {
    browser.run(&format!("document.getElementById('search').value = {}", Value::from(text)));
    browser.run("document.getElementById('search').dispatchEvent(new Event('input', {bubbles: true}))");
    let results = "document.getElementById('found').textContent";
    browser.wait_for("it is found", &format!("{results}.includes({})", Value::from(found)), results);
}

#[test]
fn a_key_is_found_and_changed_on_its_own_page() {
    let admin = Admin::start();
    let _traffic = Traffic::of(&admin, &["ann", "bob"]);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("the key is among the top", &has_row("top", &["user=ann"]), TEXT);
    search(&browser, "ANN", "user=ann");
    browser.click("#found a");
    let title = "document.getElementById('key-title').textContent";
    browser.wait_for("its page opens", &format!("{title} === 'user=ann'"), TEXT);
    assert_eq!(
        browser.run("return location.pathname + location.search"),
        "/key?domain=shop&descriptor=user%3Dann"
    );
    for (table, texts) in [
        ("key-limits", &["2 per hour", "rule shop.user", "spent", "0 left"][..]),
        ("key-refusals", &["over 2 per hour"]),
    ] {
        browser.wait_for(table, &has_row(table, texts), TEXT);
    }
    let why = "document.getElementById('key-explain').textContent";
    browser.wait_for("why", &format!("{why}.includes('The rule shop.user (') && {why}.includes('shop.yaml:3) has the limit 2 per hour.')"), why);
    picture(&browser, "key");
    assert_eq!(browser.run(NAMES), Value::Array(Vec::new()));

    // The limit in force stands in the field; nothing else is chosen, and nothing is sent without a choice.
    browser.click("#key-change");
    let number = "document.getElementById('act-number').value";
    browser.wait_for("the limit in force is in the field", &format!("{number} === '2'"), number);
    assert_eq!(browser.run("return document.getElementById('act-unit').value"), "hour");
    assert_eq!(browser.run("return document.querySelectorAll('#act input:checked').length"), 0);
    confirm(&browser);
    assert_eq!(browser.run("return document.getElementById('act').open"), true);
    browser.click("input[value=limit]");
    confirm(&browser);
    assert_eq!(browser.run("return document.getElementById('act-for').validity.valueMissing"), true);
    assert_eq!(http::get(admin.port, "/api/v1/overrides").json()["total"], 0);
    browser.run("document.getElementById('act-number').value = '50'");
    browser.type_into("#act-for", "90m");
    browser.type_into("#act-reason", "trial");
    confirm(&browser);
    browser.wait_for(
        "the override is shown",
        &has_row("key-overrides", &["user=ann", "50 per hour", "trial", "1h 29m"]),
        TEXT,
    );
    browser.wait_for("it decides", &has_row("key-limits", &["50 per hour", "override"]), TEXT);
    browser.wait_for("it is a change", &has_row("key-changes", &["override set", "user=ann", "50"]), TEXT);

    browser.click("button[aria-label='Extend the override of user=ann']");
    assert_eq!(browser.run("return document.activeElement.id"), "act-for");
    assert_eq!(browser.run("return document.getElementById('act-number').value"), "50");
    browser.type_into("#act-for", "no end");
    confirm(&browser);
    browser.wait_for("it has no end", &has_row("key-overrides", &["50 per hour", "trial", "no end"]), TEXT);
    browser.click("button[aria-label='Remove the override of user=ann']");
    browser.accept_alert();
    browser.wait_for("it is gone", "document.querySelectorAll('#key-overrides tr').length === 0", TEXT);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_hits_of_a_key_are_drawn_and_the_focus_stays_where_it_is() {
    let admin = Admin::start();
    assert_eq!(
        admin.run(&["override", "set", "shop", "user=ann", "--limit", "1000/hour"]).status.code(),
        Some(0)
    );
    let browser = open(&admin);
    let key =
        |name: &str| format!("http://127.0.0.1:{}/key?domain=shop&descriptor=user%3D{name}", admin.port);
    browser.open(&key("ann"));
    let hits = "document.getElementById('key-window').textContent";
    browser.wait_for("it is not counted", &format!("{hits}.startsWith('Not among the counted keys')"), hits);
    let edit = "button[aria-label='Edit the override of user=ann']";
    browser.wait_for("the override is shown", &format!("document.querySelector(\"{edit}\")"), TEXT);
    browser.run(&format!("const b = document.querySelector(\"{edit}\"); b.focus(); b.classList.add('old')"));
    browser.wait_for(
        "it is drawn again",
        &format!("!document.querySelector(\"{edit}\").classList.contains('old')"),
        TEXT,
    );
    let focused = "document.activeElement.getAttribute('aria-label')";
    assert_eq!(browser.run(&format!("return {focused}")), "Edit the override of user=ann");
    let _traffic = Traffic::of(&admin, &["ann"]);
    let counted = "Number(document.getElementById('key-allowed').textContent)";
    browser.wait_for("the hits are counted", &format!("{counted} > 10"), counted);
    let drawn = "document.querySelector('#key-plot path.line.allowed')?.getAttribute('d') ?? ''";
    browser.wait_for("the hits are drawn", &format!("{drawn}.includes('L')"), drawn);
    let label = "document.getElementById('key-plot').getAttribute('aria-label')";
    let title = "document.getElementById('key-plot-title').textContent";
    let since = format!("/^Hits per second since \\d\\d:\\d\\d:\\d\\d \\S+$/.test({title})");
    browser.wait_for("the time since when is named", &since, title);
    browser.wait_for("the plot is described", &format!("{label}.endsWith(' refused per second')"), label);
    picture(&browser, "plot");
    assert_eq!(browser.run(NAMES), Value::Array(Vec::new()));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_key_with_any_characters_has_a_page() {
    let admin = Admin::start();
    let odd = "a,b=c\\d<b>\u{202e}&e";
    admin.ask(odd, 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("it is among the top", "document.querySelector('#top a')", TEXT);
    browser.click("#top a");
    browser.wait_for("its counter is shown", &has_row("key-limits", &["3 of 2 spent"]), TEXT);
    assert_eq!(browser.run("return document.querySelectorAll('article b b').length"), 0);
    // An address that was mistyped is named.
    browser.open(&format!("http://127.0.0.1:{}/key?domain=shop", admin.port));
    let error = "document.getElementById('key-error').textContent";
    browser.wait_for("the address is named", &format!("{error}.startsWith('The address has no key')"), error);
}

#[test]
fn the_command_of_a_key_is_one_command_whatever_the_address_says() {
    let admin = Admin::start();
    let browser = open(&admin);
    for (domain, descriptor, read) in [
        ("shop", "user=ann", "user=ann"),
        ("x';touch p #", "user=y'$(touch p)`touch p`", "user=y'$(touch p)`touch p`"),
        ("--admin=example.org", "user=-x !! \"", "user=-x !! \""),
        ("a\u{1b}]0;b\u{7}\n touch p\n'", "user=\u{1b}[2J\n\u{202e}'", "user=\\u{1b}[2J\\n\\u{202e}'"),
    ] {
        let named = serde_json::json!({"domain": domain, "descriptor": descriptor});
        let query = browser.run(&format!("return new URLSearchParams({named}).toString()"));
        browser.open(&format!("http://127.0.0.1:{}/key?{}", admin.port, query.as_str().unwrap()));
        let command = "document.getElementById('key-command').textContent";
        browser.wait_for("the command is shown", &format!("{command} !== ''"), TEXT);
        let command = browser.run(&format!("return {command}")).as_str().unwrap().to_owned();
        assert!(!command.contains(|one: char| one.is_control() || one == '\u{202e}'), "{command:?}");
        let dir = tempfile::tempdir().unwrap();
        for shell in ["bash", "sh"] {
            let script = format!("tollgate() {{ printf '%s\\0' \"$@\"; }}\n{command}");
            let run = Command::new(shell).args(["-c", &script]).current_dir(&dir).output().unwrap();
            let words = String::from_utf8(run.stdout).unwrap();
            let words: Vec<_> = words.split_terminator('\0').collect();
            assert_eq!((words.len(), &run.stderr[..]), (4, &b""[..]), "{shell}: {command}");
            if shell == "bash" {
                assert_eq!(words, ["explain", "--", domain, read], "{command}");
            }
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "{command}");
    }
}

#[test]
fn two_thousand_rules_are_searched_and_filtered() {
    let (setup, port) = setup();
    let rules: Vec<String> = (0..2000)
        .map(|n| format!("- key: tenant_{n:04}\n  rate_limit: {{unit: hour, requests_per_unit: {}}}", n + 1))
        .collect();
    let rules = format!("domain: many\ndescriptors:\n{}\n", rules.join("\n"));
    let admin = Admin { server: setup.rules("many.yaml", &rules).start(), port };
    admin.ask("ann", 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    let about = "document.getElementById('rules-about').textContent";
    browser.wait_for(
        "the busiest are shown",
        &format!("{about} === 'the busiest 100 of 2,003: search for others'"),
        about,
    );
    search(&browser, "tenant_1987", "1,988 per hour");
    browser.click("#found a");
    browser.wait_for(
        "the rule alone is shown",
        &has_row("rules", &["many.tenant_1987", "1,988 per hour"]),
        TEXT,
    );
    browser.wait_for("and no other", "document.querySelectorAll('#rules tr').length === 1", TEXT);
    assert_eq!(
        browser.run("return document.getElementById('filter-text').textContent"),
        "domain many, rule many.tenant_1987"
    );
    assert_eq!(browser.run("return document.querySelectorAll('#top tr, #refusals tr').length"), 0);
    picture(&browser, "rules");
    let options = "document.getElementById('domain').options.length";
    browser.wait_for("the domains can be chosen", &format!("{options} === 3"), options);
    browser.run(
        "const s = document.getElementById('domain'); s.value = 'shop'; s.dispatchEvent(new Event('change'))",
    );
    browser.wait_for("the other domain is shown", &has_row("top", &["user=ann"]), TEXT);
    browser.wait_for("with its rules", "document.querySelectorAll('#rules tr').length === 3", TEXT);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn long_values_are_cut_and_times_have_their_zone() {
    let admin = Admin::start();
    let long = "x".repeat(300);
    admin.ask(&long, 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("it is cut", "document.querySelector('#top a')?.textContent.length < 130", TEXT);
    browser.click("#top button.more");
    browser.wait_for("it is shown on demand", &has_row("top", &[&long]), TEXT);
    let time = browser.run("return document.querySelector('#refusals .time').textContent");
    assert!(time.as_str().unwrap().split(' ').count() == 2, "{time}");
}

#[test]
fn a_service_that_is_gone_has_dim_numbers() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("the key is shown", &has_row("top", &["user=ann"]), TEXT);
    drop(admin);
    let live = "document.getElementById('live').textContent";
    browser.wait_for("it says so", &format!("{live}.startsWith('No answer since ')"), live);
    eventually("the numbers are dim", || {
        let opacity = browser.run("return getComputedStyle(document.getElementById('main')).opacity");
        if opacity == "0.45" { Ok(()) } else { Err(opacity.to_string()) }
    });
    // The dimmed numbers are old on purpose; what is said about them is not dim.
    let own = CONTRAST.replace("header *, main *", "#live, #live *");
    assert_eq!(browser.run(&own), Value::Array(Vec::new()));
}

#[test]
fn a_network_is_blocked_and_shadowed_hits_are_shown() {
    let (setup, port) = setup();
    let rules = "domain: shop\ndescriptors:\n  - key: ip\n    shadow_mode: true\n    \
        rate_limit: {unit: hour, requests_per_unit: 2}\n";
    let admin = Admin { server: setup.rules("shop.yaml", rules).start(), port };
    let client = admin.server.client();
    for _ in 0..7 {
        client.ask(support::client::request("shop", &[&[("ip", "10.1.2.3")]])).unwrap();
    }
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("the key is among the top", &has_row("top", &["ip=10.1.2.3", "5 in shadow mode"]), TEXT);
    assert_eq!(browser.run("return document.querySelectorAll('#refusals tr').length"), 0);
    browser.click("#shadow");
    browser.wait_for(
        "it is listed",
        &has_row("refusals", &["ip=10.1.2.3", "over 2 per hour", "5 times"]),
        TEXT,
    );
    picture(&browser, "shadow");
    browser.click("#top a");
    let hits = "document.getElementById('key-counts').textContent";
    let counted = format!("{hits} === '2 allowed, 0 refused, 5 over the limit in shadow mode'");
    browser.wait_for("the key has its hits", &counted, hits);
    let reason = has_row("key-refusals", &["over 2 per hour, allowed by shadow mode", "5 since"]);
    browser.wait_for("and what shadow mode allowed", &reason, TEXT);

    browser.click("#key-change");
    assert_eq!(browser.run("return document.getElementById('act-value-label').hidden"), true);
    browser.run("const s = document.getElementById('act-scope'); s.value = '0'; s.dispatchEvent(new Event('input', {bubbles: true}))");
    let value = "document.getElementById('act-value').value";
    assert_eq!(browser.run(&format!("return {value}")), "10.1.2.3");
    browser.run(&format!("{value} = '10.0.0.0/8'"));
    browser.click("input[value=block]");
    browser.type_into("#act-for", "1h");
    let effect = browser.run("return document.getElementById('act-effect').textContent").to_string();
    assert!(effect.contains("any descriptor with ip=10.0.0.0/8 in domain shop is rejected"), "{effect}");
    confirm(&browser);
    let row = has_row("key-overrides", &["any descriptor with ip=10.0.0.0/8", "block"]);
    browser.wait_for("the network is blocked", &row, TEXT);
    browser.click("button[aria-label='Edit the override of any descriptor with ip=10.0.0.0/8']");
    assert_eq!(browser.run(&format!("return {value}")), "10.0.0.0/8");
    browser.click("#act-cancel");
    let refused = client.ask(support::client::request("shop", &[&[("ip", "10.9.9.9")]])).unwrap();
    assert_eq!(refused.overall_code, 2);
    assert_eq!(browser.complaints(), [""; 0]);
}
