//! The page of the admin API in a real browser, against a running service with Redis and traffic.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::Value;

use crate::admin::{Admin, setup};
use support::{browser::Browser, client::request, eventually, holds, http, redis::Redis};

mod budget;
mod key;
mod limits;

/// Requests of users, until this is dropped.
struct Traffic {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Traffic {
    fn of(admin: &Admin, users: &'static [&'static str]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (client, stopped) = (admin.server.client(), stop.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                for user in users {
                    // The test reads the page, not the response.
                    let _ = client.ask(request("shop", &[&[("user", user)]]));
                    let _ = client.ask(request("shop", &[&[("path", "/cart")]]));
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

fn open(admin: &Admin) -> Browser {
    let browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{}/", admin.port));
    browser
}

fn wait_until_live(browser: &Browser) {
    let state = "document.getElementById('live').dataset.state";
    browser.wait_for("the page is live", &format!("{state} === 'live'"), "document.body.innerText");
}

/// Opens the dialog of a key, and waits for its counter: before, the dialog may still move under the pointer.
fn change(browser: &Browser) {
    browser.click("#top button[aria-label='Change user=ann']");
    let counter = "document.getElementById('act-counter').textContent";
    browser.wait_for("the counter is shown", &format!("{counter} !== ''"), counter);
}

/// Confirms the dialog by the keyboard: it grows when the service says what the change would do.
fn confirm(browser: &Browser) {
    browser.type_into("#act-confirm", ENTER);
}

/// True when a table has a row with these texts.
fn has_row(table: &str, texts: &[&str]) -> String {
    let texts = serde_json::to_string(texts).unwrap();
    format!(
        "[...document.querySelectorAll('#{table} tr')].some((row) => {texts}.every((text) => row.innerText.includes(text)))"
    )
}

/// The key by its `WebDriver` code.
const ENTER: &str = "\u{E007}";

const TEXT: &str = "document.body.innerText";

#[test]
fn a_key_of_the_page_is_blocked_until_the_block_expires() {
    let redis = Redis::single();
    let (setup, port) = setup();
    // The limit is high, so that only the block rejects requests.
    let rules = crate::admin::RULES
        .replace("unit: hour, requests_per_unit: 2", "unit: hour, requests_per_unit: 100000");
    let setup = setup.redis(&redis.env()).env("REPLICA_SYNC", "true").rules("shop.yaml", &rules);
    let admin = Admin { server: setup.start_healthy(), port };
    let _traffic = Traffic::of(&admin, &["ann", "bob"]);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("the replica is shown", &has_row("replicas", &["this replica"]), TEXT);
    browser.click("[data-by=allowed]");
    browser.wait_for(
        "the key is among the top",
        &has_row("top", &["user=ann", "shop.user", "Change…"]),
        TEXT,
    );
    change(&browser);
    browser.click("input[value=block]");
    browser.type_into("#act-for", "5s");
    let effect = browser.run("return document.getElementById('act-effect').textContent");
    assert_eq!(
        effect,
        "Every request with user=ann in domain shop is rejected with 429 for 5s, on all replicas that share this \
         Redis. Nothing is counted."
    );
    browser.wait_for(
        "the counter is shown",
        "document.getElementById('act-counter').textContent.includes(' used, ')",
        TEXT,
    );
    browser.type_into("#act-reason", "scraper");
    confirm(&browser);
    browser.wait_for("the override is shown", &has_row("overrides", &["user=ann", "block", "scraper"]), TEXT);
    browser.wait_for(
        "the refusals are shown",
        &has_row("refusals", &["user=ann", "blocked", "override"]),
        TEXT,
    );
    browser.click("[data-by=refused]");
    browser.wait_for("the key is among the refused", &has_row("top", &["user=ann"]), TEXT);
    browser.wait_for("the block has ended", &format!("!({})", has_row("overrides", &["user=ann"])), TEXT);
    let ask = || admin.server.ask(request("shop", &[&[("user", "ann")]])).unwrap().overall_code();
    eventually("requests are allowed again", || holds(ask() == Code::Ok, || "over limit".to_owned()));
    assert_eq!(browser.complaints(), [""; 0]);
    drop(browser);
    let log = admin.server.final_log();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn an_override_is_removed_and_a_counter_is_reset() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    change(&browser);
    browser.click("input[value=reset]");
    let effect = browser.run("return document.getElementById('act-effect').textContent");
    assert!(
        effect.as_str().unwrap().starts_with("The counters of user=ann in domain shop are set to zero"),
        "{effect}"
    );
    confirm(&browser);
    browser.wait_for(
        "the message is shown",
        "document.getElementById('message').textContent === 'Reset counter: user=ann'",
        TEXT,
    );
    assert_eq!(admin.ask("ann", 2), 0, "the counter is zero");

    change(&browser);
    browser.click("input[value=limit]");
    browser.run("document.getElementById('act-number').value = '5'");
    browser.type_into("#act-for", "1h");
    confirm(&browser);
    browser.wait_for("the override is shown", &has_row("overrides", &["user=ann", "5/hour"]), TEXT);
    browser.click("button[aria-label='Remove the override of user=ann']");
    browser.accept_alert();
    browser.wait_for("it is gone", &format!("!({})", has_row("overrides", &["user=ann"])), TEXT);

    // The dialog shows errors of the service.
    change(&browser);
    browser.click("input[value=limit]");
    browser.run("const input = document.getElementById('act-number'); input.removeAttribute('max'); input.value = '9007199254740992'");
    browser.type_into("#act-for", "1h");
    confirm(&browser);
    let error = "document.getElementById('act-error').textContent";
    browser.wait_for("the error is shown", &format!("{error}.includes('requests_per_unit')"), error);
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("status of 400")), "{complaints:?}");
}

#[test]
fn an_entry_is_blocked_everywhere_and_an_emptied_limit_is_not_sent() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    change(&browser);
    browser.click("input[value=limit]");
    let number = "document.getElementById('act-number').value";
    browser.wait_for("the limit in force is in the field", &format!("{number} === '2'"), number);
    browser.run("document.getElementById('act-number').value = ''");
    confirm(&browser);
    let is_open = browser.run(
        "return document.getElementById('act').open && !document.getElementById('act-number').validity.valid",
    );
    assert_eq!(is_open, true, "the browser asks for the number");
    browser.run("document.getElementById('act-number').removeAttribute('required')");
    browser.type_into("#act-for", "1h");
    confirm(&browser);
    let error = "document.getElementById('act-error').textContent";
    browser.wait_for(
        "the error is shown",
        &format!("{error} === 'the number of requests is missing'"),
        error,
    );
    assert_eq!(http::get(admin.port, "/api/v1/overrides").json()["total"], 0);

    browser.click("input[value=block]");
    browser.run(
        "const scope = document.getElementById('act-scope'); scope.value = '0'; scope.dispatchEvent(new Event('input', {bubbles: true}))",
    );
    let effect = browser.run("return document.getElementById('act-effect').textContent");
    assert!(
        effect.as_str().unwrap().starts_with("Every request with any descriptor with user=ann"),
        "{effect}"
    );
    confirm(&browser);
    browser.wait_for(
        "it is shown",
        &has_row("overrides", &["any descriptor with user=ann", "block", "shop"]),
        TEXT,
    );
    let other = admin.server.ask(request("shop", &[&[("path", "/x"), ("user", "ann")]])).unwrap();
    assert_eq!(other.overall_code, i32::from(Code::OverLimit));
    browser.click("button[aria-label='Remove the override of any descriptor with user=ann']");
    browser.accept_alert();
    browser.wait_for("it is gone", "document.querySelectorAll('#overrides tr').length === 0", TEXT);
}

#[test]
fn a_limit_follows_a_calendar_that_is_typed() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    change(&browser);
    browser.click("input[value=limit]");
    browser.run("document.getElementById('act-number').value = '500'");
    browser.run("const unit = document.getElementById('act-unit'); unit.value = 'month'; unit.dispatchEvent(new Event('input', {bubbles: true}))");
    browser.type_into("#act-for", "1h");
    browser.type_into("#act-calendar", "Europe/Berln,anchor_day=15");
    confirm(&browser);
    let error = "document.getElementById('act-error').textContent";
    browser.wait_for(
        "an unknown zone is an error",
        &format!("{error}.includes('Europe/Berln') && {error}.includes('Europe/Berlin')"),
        error,
    );
    browser.run("document.getElementById('act-calendar').value = ''");
    browser.type_into("#act-calendar", "Europe/Berlin,anchor_day=15");
    let effect = "document.getElementById('act-effect').textContent";
    let described =
        "user=ann in domain shop is limited to 500 requests per month (Europe/Berlin,anchor_day=15) for 1h";
    browser.wait_for("the effect is described", &format!("{effect}.startsWith('{described}')"), effect);
    confirm(&browser);
    let shown = "500 per month (Europe/Berlin, from the 15th)";
    browser.wait_for("it is among the overrides", &has_row("overrides", &["user=ann", shown]), TEXT);
    browser.wait_for("and beside the key", &has_row("top", &["user=ann", shown]), TEXT);
    // The dialog of the key has the end of the window.
    change(&browser);
    let counter = "document.getElementById('act-counter').textContent";
    browser.wait_for(
        "the counter is shown",
        &format!("{counter}.includes('0 used, 500 left of {shown}, ends in ')"),
        counter,
    );
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("status of 400")), "{complaints:?}");
}

#[test]
fn a_domain_is_switched_and_switched_back() {
    let admin = Admin::start();
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.click("#switch-open");
    browser.type_into("#switch-reason", "incident");
    browser.click("#switch-confirm");
    let effect = "document.getElementById('switch-effect').textContent";
    assert_eq!(browser.run(&format!("return {effect}")), "Choose a domain, a switch and how long it lasts.");
    assert_eq!(browser.run("return document.getElementById('switch').open"), true, "nothing is preselected");
    for (field, value) in [("domain", "shop"), ("action", "shadow"), ("for", "3600")] {
        browser.run(&format!(
            "const s = document.getElementById('switch-{field}'); s.value = '{value}'; s.dispatchEvent(new Event('input', {{bubbles: true}}))"
        ));
    }
    browser.wait_for(
        "the effect is described",
        &format!("{effect}.includes('In domain shop, requests are counted and none is rejected for 1h')"),
        effect,
    );
    browser.click("#switch-confirm");
    browser.wait_for(
        "it is shown",
        &has_row("overrides", &["all requests", "shadow", "incident", "shop"]),
        TEXT,
    );
    assert_eq!(admin.ask("ann", 20), 0, "no request is rejected");
    browser.click("button[aria-label='Remove the override of all requests']");
    browser.accept_alert();
    browser.wait_for("it is gone", "document.querySelectorAll('#overrides tr').length === 0", TEXT);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn rules_are_tried_in_a_dialog() {
    let admin = Admin::start();
    admin.ask("ann", 5);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.click("#try-open");
    let value = "document.getElementById('try-rules').value";
    let file = serde_json::json!(crate::admin::RULES);
    browser.wait_for("it begins with the rules in force", &format!("{value} === {file}"), value);
    let mistake = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: hours}}";
    browser.run(&format!("{value} = {}", serde_json::json!(mistake)));
    browser.click("#try-confirm");
    let error = "document.getElementById('try-error').textContent";
    browser.wait_for("the mistake has its place", &format!("{error}.includes('rules:3:')"), error);
    let rules = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 4}}";
    browser.run(&format!("document.getElementById('try-rules').value = {}", serde_json::json!(rules)));
    let result = "document.getElementById('try-result').textContent";
    eventually("the requests are recorded", || {
        browser.click("#try-confirm");
        let shown = format!("{result}.includes('5 requests from')");
        std::thread::sleep(Duration::from_millis(500));
        holds(browser.run(&format!("return {shown}")) == true, || {
            browser.run(&format!("return {result}")).to_string()
        })
    });
    for text in ["Newly allowed2", "Newly allowed keys", "shop.user user=ann"] {
        browser.wait_for(text, &format!("{result}.includes('{text}')"), result);
    }
    assert_eq!(admin.ask("ann", 1), 1, "nothing has changed");
}

#[test]
fn values_of_callers_are_text_and_never_markup() {
    let admin = Admin::start();
    let evil = "<img src=x onerror=document.title='evil'><script>document.title='evil'</script>";
    admin.ask(evil, 3);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("the value is text", &has_row("refusals", &["<img src=x onerror="]), TEXT);
    let long = "wide".repeat(60);
    for value in [
        "a\u{202e}b\u{200b}",
        "\"><svg onload=alert(1)>",
        "' OR 1=1 --",
        &long,
        "=cmd|' /C calc'!A0",
        "e\u{301}\u{301}\u{301}\u{301}",
    ] {
        admin.ask(value, 3);
        admin.server.ask(request(value, &[&[(value, value)]])).unwrap();
    }
    browser.wait_for("the last one is shown", &has_row("refusals", &["=cmd|"]), TEXT);
    picture(&browser, "attack");
    browser.click("[data-by=unmatched]");
    browser.wait_for("domains are text, too", &has_row("top", &["<svg onload", "unknown domain"]), TEXT);
    picture(&browser, "attack-unmatched");
    assert_eq!(browser.run("return document.title"), "Tollgate");
    assert_eq!(browser.run("return document.querySelectorAll('td img, td script').length"), 0);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn invisible_characters_and_those_that_change_the_direction_are_escaped() {
    let admin = Admin::start();
    // Each of them, the bounds of each range, and a letter that is none.
    let evil = "moc.knab\u{202e}\u{200b}\u{2066}\u{61c}\u{ad}\u{180e}\u{feff}\u{e0041}\u{85}\n\u{f6}";
    admin.ask(evil, 3);
    let escaped =
        "moc.knab\\u{202e}\\u{200b}\\u{2066}\\u{61c}\\u{ad}\\u{180e}\\u{feff}\\u{e0041}\\u{85}\\n\u{f6}";
    let body = serde_json::json!({
        "domain": "shop", "descriptor": [{"key": "user", "value": evil}], "action": "block", "reason": "a\u{202e}b",
    });
    let headers = [("content-type", "application/json")];
    let body = body.to_string();
    let set = http::send(admin.port, "POST", "/api/v1/overrides", &headers, body.as_bytes()).unwrap();
    assert_eq!(set.status, 200, "{}", set.text());
    let browser = open(&admin);
    wait_until_live(&browser);
    for table in ["top", "refusals", "overrides"] {
        browser.wait_for("the value is escaped", &has_row(table, &[escaped]), TEXT);
    }
    browser.wait_for("the reason is escaped", &has_row("overrides", &["a\\u{202e}b"]), TEXT);
    let hidden = "return /[\\u202a-\\u202e\\u2066-\\u2069\\u200b]/.test(document.body.innerText)";
    assert_eq!(browser.run(hidden), false);
}

#[test]
fn the_page_requires_a_token_and_loads_nothing_from_other_sites() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, TOKEN).unwrap();
    let (setup, port) = setup();
    let admin = Admin { server: setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).start(), port };
    let browser = open(&admin);
    browser.wait_for("it requires a token", "document.getElementById('login').open", TEXT);
    browser.type_into("#login-token", "wrong-wrong-wrong-wrong");
    browser.click("#login button");
    let error = "document.getElementById('login-error').textContent";
    browser.wait_for("it shows the reason", &format!("{error}.includes('unknown token')"), error);
    browser.run("document.getElementById('login-token').value = ''");
    browser.type_into("#login-token", TOKEN);
    browser.click("#login button");
    wait_until_live(&browser);
    let own = format!("http://127.0.0.1:{port}/");
    let loaded = browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)");
    let loaded: Vec<&str> = loaded.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(loaded.len() >= 6 && loaded.iter().all(|name| name.starts_with(&own)), "{loaded:?}");
    let refused = browser.run(
        "return fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => String(error)).then((text) => text)",
    );
    assert!(refused.as_str().unwrap().contains("Failed to fetch"), "{refused}");
    let complaints = browser.complaints().join("\n");
    assert!(
        complaints.contains("Content Security Policy"),
        "the policy keeps it from being sent: {complaints}"
    );
}

/// Finds text with too little contrast: WCAG's AA requires 4.5, or 3 for large text.
const CONTRAST: &str = r"
const channel = (n) => { const c = n / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgb = (color) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = rgb(getComputedStyle(at).backgroundColor);
    if (color[3] === 255) return color;
  }
  return [255, 255, 255, 255];
};
const bad = [];
for (const element of document.querySelectorAll('header *, main *, article *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest('svg, tr.new, .hidden, .skip')) continue;
  const style = getComputedStyle(element);
  const [a, b] = [light(rgb(style.color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 600;
  if (ratio < (large ? 3 : 4.5)) bad.push(`${element.textContent.trim().slice(0, 20)}: ${ratio.toFixed(2)}`);
}
return bad;
";

/// Finds elements without a name for keyboards and screen readers.
const NAMES: &str = r"
const name = (element) => element.getAttribute('aria-label') ?? document.getElementById(element.getAttribute('aria-labelledby'))?.textContent
  ?? element.labels?.[0]?.textContent ?? element.textContent;
const bad = [];
for (const element of document.querySelectorAll('button, input, select, [tabindex], dialog, section, img')) {
  if (element.matches('img[alt]')) continue;
  if (element.matches('main')) continue;
  if (!name(element).trim()) bad.push(element.outerHTML.slice(0, 80));
}
for (const th of document.querySelectorAll('th')) if (!th.textContent.trim() || !th.scope) bad.push(th.outerHTML);
const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) bad.push(`id ${id} twice`);
return bad;
";

/// In both themes, on a desk and on a phone.
fn fits(browser: &Browser) {
    for theme in ["light", "dark"] {
        for (width, height) in [(1440, 900), (390, 844)] {
            browser.show(theme, width, height);
            let wide = "document.documentElement.scrollWidth";
            browser.wait_for("nothing is beside the screen", &format!("{wide} <= {width}"), wide);
            assert_eq!(browser.run(CONTRAST), Value::Array(Vec::new()), "{theme} {width}");
            if width == 1440 {
                let tall = browser.run("return document.documentElement.scrollHeight");
                assert_eq!(tall, height, "it is one screen");
            }
            let picture = browser.picture();
            assert!(picture.len() > 10_000);
            if let Ok(dir) = std::env::var("TOLLGATE_TEST_PICTURES") {
                fs::write(Path::new(&dir).join(format!("page-{theme}-{width}.png")), picture).unwrap();
            }
        }
    }
}

#[test]
fn the_page_fits_both_themes_and_widths_and_works_without_a_mouse() {
    let admin = Admin::start();
    let _traffic =
        Traffic::of(&admin, &["ann", "bob", "carol", "a-very-long-name-of-a-caller@subdomain.example.com"]);
    let body = r#"{"domain":"shop","descriptor":[{"key":"user","value":"bob"}],"action":"block","for":"2h","reason":"test"}"#;
    assert_eq!(http::post(admin.port, "/api/v1/overrides", body).status, 200);
    let browser = open(&admin);
    wait_until_live(&browser);
    browser.wait_for("there are refusals", &has_row("refusals", &["user=ann"]), TEXT);
    fits(&browser);
    assert_eq!(browser.run(NAMES), Value::Array(Vec::new()));
    // From the top of the page, Tab leads to the plots, the choices and the buttons of the rows.
    browser.show("light", 1440, 900);
    browser.run("document.activeElement.blur(); window.getSelection().removeAllRanges()");
    let mut reached = Vec::new();
    for _ in 0..12 {
        browser.press("\u{E004}");
        let at = "const at = document.activeElement; return at.id || at.dataset.by || at.textContent.trim()";
        reached.push(browser.run(at).as_str().unwrap().to_owned());
    }
    for expected in ["search", "requests", "latency", "refused"] {
        assert!(reached.iter().any(|at| at == expected), "no {expected} in {reached:?}");
    }
    // A table is one stop: the arrow keys lead to its buttons.
    let stops = "return [...document.querySelectorAll('#top a, #top button')].filter((one) => one.tabIndex === 0).length";
    assert_eq!(browser.run(stops), 1);
    // The focus stays on a key that moves to another row meanwhile.
    eventually("the arrow keys lead to the button of the second row", || {
        browser.run("document.querySelector('#top a').focus()");
        browser.press("\u{E014}");
        browser.press("\u{E015}");
        let at = "const at = document.activeElement; return `${at.textContent} in row ${at.closest('tr')?.rowIndex}`";
        match browser.run(at).as_str().unwrap() {
            "Change… in row 2" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    // The arrow keys move the cursor of the plot.
    browser.run("document.getElementById('requests').focus()");
    browser.press("\u{E012}");
    let read = "document.getElementById('requests-at').textContent";
    browser.wait_for("the point is described", &format!("{read}.includes(' allowed, ')"), read);
    // Enter opens the dialog, Escape closes it, and the focus returns, although rows were drawn meanwhile.
    browser.run("document.querySelector('#top button').focus()");
    browser.press(ENTER);
    browser.wait_for("the dialog is open", "document.getElementById('act').open", TEXT);
    thread::sleep(Duration::from_millis(2500));
    browser.press("\u{E00C}");
    browser.wait_for("the dialog is closed", "!document.getElementById('act').open", TEXT);
    assert_eq!(browser.run("return document.activeElement.textContent"), "Change…");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Saves a picture for `TOLLGATE_TEST_PICTURES`, after a check that nothing is beside the screen.
fn picture(browser: &Browser, name: &str) {
    for (theme, width, height) in [("light", 1440, 900), ("dark", 1440, 900), ("light", 390, 844)] {
        browser.show(theme, width, height);
        let wide = "document.documentElement.scrollWidth";
        browser.wait_for("nothing is beside the screen", &format!("{wide} <= {width}"), wide);
        assert_eq!(browser.run(CONTRAST), Value::Array(Vec::new()), "{name} {theme} {width}");
        if let Ok(dir) = std::env::var("TOLLGATE_TEST_PICTURES") {
            fs::write(Path::new(&dir).join(format!("{name}-{theme}-{width}.png")), browser.picture())
                .unwrap();
        }
    }
    browser.show("light", 1440, 900);
}

#[test]
fn the_page_shows_all_replicas_their_changes_and_an_outage() {
    let mut redis = Redis::single();
    let start = || {
        let (setup, port) = setup();
        let setup = setup.redis(&redis.env()).env("REPLICA_SYNC", "true");
        Admin { server: setup.env("STORE_FAILURE_POLICY", "error").start_healthy(), port }
    };
    let [one, other] = [start(), start()];
    let _traffic = Traffic::of(&other, &["ann", "bob"]);
    other.server.ask(request("shpo", &[&[("user", "<b>ann</b>\u{202e}")]])).unwrap();
    let browser = open(&one);
    wait_until_live(&browser);
    browser.wait_for("the other's keys are shown", &has_row("top", &["user=ann", "shop.user"]), TEXT);
    browser.wait_for(
        "and its refusals",
        &has_row("refusals", &["user=bob", "over 2 per hour", "times since"]),
        TEXT,
    );
    let about = "document.getElementById('about').textContent";
    browser.wait_for("both answered", &format!("{about}.startsWith('2 of 2 replicas')"), about);
    browser.wait_for("a start is a change", &has_row("changes", &["started", "version"]), TEXT);
    let unmatched = "document.getElementById('unmatched').textContent";
    browser.wait_for(
        "so is unmatched traffic",
        &format!("{unmatched}.includes('1 descriptor of unknown domains')"),
        TEXT,
    );
    browser.click("[data-by=unmatched]");
    browser.wait_for(
        "it is listed",
        &has_row("top", &["shpo", "unknown domain", "<b>ann</b>\\u{202e}"]),
        TEXT,
    );
    browser.click("[data-by=refused]");
    let body =
        r#"{"domain":"shop","descriptor":"user=ann","action":"block","for":"2h","reason":"scraper\u202e"}"#;
    assert_eq!(http::post(other.port, "/api/v1/overrides", body).status, 200);
    browser.wait_for(
        "the block is a change",
        &has_row("changes", &["override set", "user=ann", "scraper\\u{202e}"]),
        TEXT,
    );
    picture(&browser, "load");
    // One replica: the one that answers has no traffic.
    browser.run("const s = document.getElementById('scope'); s.value = [...s.options].find((o) => o.text.endsWith('(this)')).value; s.dispatchEvent(new Event('change'))");
    browser.wait_for("it is named", &format!("{about}.startsWith('this replica')"), about);
    browser.wait_for("without the keys of the other", &format!("!({})", has_row("top", &["user=ann"])), TEXT);
    browser.run(
        "const s = document.getElementById('scope'); s.value = ''; s.dispatchEvent(new Event('change'))",
    );
    browser.wait_for("all are back", &has_row("top", &["user=ann"]), TEXT);
    browser.wait_for("with the block", &has_row("top", &["user=ann", "block"]), TEXT);
    let rate = "const row = [...document.querySelectorAll('#rules tr')].find((row) => row.innerText.includes('shop.user')); return row?.cells[3].textContent";
    eventually("the rates of rules are those of the other replica", || {
        let rate = browser.run(rate).as_str().unwrap_or_default().to_owned();
        holds(rate.parse::<f64>().is_ok_and(|rate| rate > 0.0), || rate.clone())
    });
    shows_an_outage(&browser, &one, &mut redis);
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}

fn shows_an_outage(browser: &Browser, one: &Admin, redis: &mut Redis) {
    let about = "document.getElementById('about').textContent";
    let _own = Traffic::of(one, &["carl"]);
    redis.kill();
    let outage = "document.getElementById('outage')";
    browser.wait_for("the banner says what callers get", &format!("!{outage}.hidden && /redis is not connected since .*redis 127.0.0.1.*Policy error: [1-9][0-9]*\\/s failing; Envoy lets them through/.test({outage}.textContent)"), TEXT);
    let state = "document.getElementById('live').dataset.state";
    assert_eq!(browser.run(&format!("return {state}")), "lost");
    let red = browser.run(&format!("return getComputedStyle({outage}).backgroundColor"));
    assert_eq!(red, "rgb(180, 35, 24)");
    browser.wait_for("the others are unknown", &format!("{about}.startsWith('this replica alone')"), about);
    picture(browser, "outage");
    redis.start();
    wait_until_live(browser);
    browser.wait_for("the outage is a change", &has_row("changes", &["store back"]), TEXT);
    assert_eq!(browser.run(&format!("return {outage}.hidden")), true);
}
