//! Headless Chromium, controlled by the `WebDriver` protocol.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{PATIENCE, eventually, holds, ports::free_port};

/// A browser with one page; stops when dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser.
    pub fn start() -> Self {
        let port = free_port();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={port}")).stdout(Stdio::null()).stderr(Stdio::null());
        let driver = driver.spawn().expect("tests/run installs chromium-driver");
        let mut browser = Self { driver, port, session: String::new() };
        // Tests run as root in containers, where Chromium's sandbox is not available.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        let options = json!({ "args": args });
        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let body = json!({ "capabilities": { "alwaysMatch": wanted } });
        let session = eventually("the browser starts", || browser.try_send("POST", "/session", &body));
        session["sessionId"].as_str().expect("the session has no id").clone_into(&mut browser.session);
        browser
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// Runs a script, and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true. The failure shows the value of another one.
    pub fn wait_for(&self, what: &str, expression: &str, shown: &str) {
        eventually(what, || {
            let is_true = self.run(&format!("return Boolean({expression})")) == true;
            holds(is_true, || self.run(&format!("return String({shown})")).to_string())
        });
    }

    /// Clicks the first element that a selector matches, with the pointer. The page may replace it meanwhile.
    pub fn click(&self, selector: &str) {
        eventually(selector, || {
            let path = format!("/session/{}/element/{}/click", self.session, self.element(selector));
            match self.try_send("POST", &path, &json!({})) {
                Err(error) if error.contains("stale element") => Err(error),
                clicked => Ok(clicked.unwrap_or_else(|error| panic!("click {selector}: {error}"))),
            }
        });
    }

    /// Types into the first element that a selector matches.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.call("POST", &format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses a key by its `WebDriver` code, such as `\u{E004}` for Tab.
    pub fn press(&self, key: &str) {
        let actions = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.call("POST", "/actions", &body);
    }

    /// Accepts an alert of the page.
    pub fn accept_alert(&self) {
        eventually("the alert is open", || {
            self.try_send("POST", &format!("/session/{}/alert/accept", self.session), &json!({}))
        });
    }

    /// Sets the colour scheme and the size of the page.
    pub fn show(&self, theme: &str, width: u32, height: u32) {
        let feature = json!({ "name": "prefers-color-scheme", "value": theme });
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// A screenshot as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let shot = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        BASE64_STANDARD.decode(shot["data"].as_str().expect("no screenshot")).expect("invalid base64")
    }

    /// The errors in the browser's log: of scripts, and of resources that the page's policy blocks.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        log.as_array().into_iter().flatten().map(|entry| entry["message"].to_string()).collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn element(&self, selector: &str) -> String {
        let body = json!({ "using": "css selector", "value": selector });
        let found = eventually(selector, || {
            self.try_send("POST", &format!("/session/{}/element", self.session), &body)
        });
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        id.expect("the element has no id").to_owned()
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_send(method, &format!("/session/{}{path}", self.session), body)
            .unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"))
    }

    fn try_send(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let (is_ok, mut value) =
            exchange(self.port, method, path, &body.to_string()).map_err(|error| error.to_string())?;
        if is_ok { Ok(value["value"].take()) } else { Err(value["value"]["message"].to_string()) }
    }
}

/// Sends a request to the driver, which never closes the connection. Returns whether it succeeded, and the response.
fn exchange(port: u16, method: &str, path: &str, body: &str) -> io::Result<(bool, Value)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")?;
    let (mut reader, mut head, mut length) = (BufReader::new(stream), String::new(), 0);
    while reader.read_line(&mut head)? > 2 {
        let last = head.lines().last().unwrap_or_default().to_ascii_lowercase();
        if let Some(value) = last.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or_default();
        }
    }
    let mut answer = vec![0; length];
    reader.read_exact(&mut answer)?;
    Ok((head.starts_with("HTTP/1.1 200"), serde_json::from_slice(&answer)?))
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.try_send("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        std::thread::sleep(Duration::from_millis(50));
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
