//! Headless Chromium, driven through its DevTools pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Value};
use tempfile::TempDir;

/// How long the browser may take to start, to answer, and to do what is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keep the browser from asking its maker's servers for anything, and let it run as root and without a display.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// The browser reads commands from descriptor 3 and writes to 4.
const ON_DESCRIPTORS: &str = r#"exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#;

/// A browser with one page. It ends when it is dropped.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    /// The number of commands sent so far.
    sent: u64,
    /// The page's session.
    session: Option<String>,
    /// What happened so far, in the words of the DevTools protocol.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page.
    pub fn start() -> Result<Browser> {
        let profile = tempfile::tempdir()?;
        let mut child = Command::new("sh")
            .args(["-c", ON_DESCRIPTORS, "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting chromium")?;
        let commands = child.stdin.take().context("no input of chromium")?;
        let answers = BufReader::new(child.stdout.take().context("no output of chromium")?);
        let (sender, messages) = mpsc::channel();
        let mut parsed = answers.split(0).map_while(|m| serde_json::from_slice(&m.ok()?).ok());
        std::thread::spawn(move || parsed.try_for_each(|message: Value| sender.send(message)));
        let (session, events) = (None, Vec::new());
        let mut browser = Browser { child, commands, messages, sent: 0, session, events, _profile: profile };
        browser.attach().context("chromium does not start; make setup installs it")?;
        Ok(browser)
    }

    fn attach(&mut self) -> Result<()> {
        let targets = self.call("Target.getTargets", json!({}))?;
        let is_page = |target: &&Value| target["type"] == "page";
        let page = targets["targetInfos"].as_array().into_iter().flatten().find(is_page).context("no page")?;
        let to_page = json!({"targetId": page["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", to_page)?;
        self.session = Some(attached["sessionId"].as_str().context("no session")?.to_owned());
        for domain in ["Page", "Runtime", "Network", "Log", "Accessibility"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// Calls a method of the DevTools protocol, and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.sent += 1;
        let id = self.sent;
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left).with_context(|| format!("no answer to {method}"))?;
            if message["id"] != json!(id) {
                self.events.push(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].clone());
            } else {
                bail!("{method}: {}", message["error"]);
            }
        }
    }

    /// Sets the size of the page's window, in CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics).map(drop)
    }

    /// Sets what the reader prefers, such as `prefers-color-scheme` to `dark`.
    pub fn prefer(&mut self, features: &[(&str, &str)]) -> Result<()> {
        let features: Vec<Value> = features.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).map(drop)
    }

    /// Opens an address, and returns when the page is loaded.
    pub fn open(&mut self, url: &str) -> Result<()> {
        // A change of the fragment alone would not load it anew.
        self.call("Page.navigate", json!({"url": "about:blank"}))?;
        self.wait_for("location.href == 'about:blank'")?;
        self.call("Page.navigate", json!({ "url": url }))?;
        self.wait_for("location.href != 'about:blank' && document.readyState == 'complete'")
    }

    /// Returns the value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "returnByValue": true});
        let evaluated = self.call("Runtime.evaluate", params)?;
        ensure!(evaluated["exceptionDetails"].is_null(), "{expression}: {}", evaluated["exceptionDetails"]);
        Ok(evaluated["result"]["value"].clone())
    }

    /// Waits until a JavaScript expression is true.
    pub fn wait_for(&mut self, expression: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        // While a page is being replaced, there is nothing to evaluate in.
        while self.evaluate(expression).ok() != Some(json!(true)) {
            ensure!(Instant::now() < deadline, "not within {PATIENCE:?}: {expression}");
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Presses a key that is no character, such as `ArrowDown` or `Tab`.
    pub fn press(&mut self, key: &str, code: u32) -> Result<()> {
        for kind in ["rawKeyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", params)?;
        }
        Ok(())
    }

    /// Clicks on the middle of the element that a CSS selector finds.
    pub fn click(&mut self, selector: &str) -> Result<()> {
        let middle = format!(
            "(() => {{ const element = document.querySelector({}); element.scrollIntoView({{ block: 'center' }}); \
             const box = element.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        );
        let middle = self.evaluate(&middle)?;
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({"type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params)?;
        }
        Ok(())
    }

    /// Returns the addresses that were requested so far.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).map(str::to_owned).collect()
    }

    /// Returns the errors in the browser's console so far, and what the page's policy kept from running.
    pub fn errors(&self) -> Vec<String> {
        let is_error = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] == "error",
            Some("Log.entryAdded") => {
                ["error", "warning"].iter().any(|level| event["params"]["entry"]["level"] == *level)
            }
            _ => false,
        };
        self.events.iter().filter(is_error).map(|event| event["params"].to_string()).collect()
    }

    /// Writes a picture of the window as WebP.
    pub fn screenshot(&mut self, file: &Path) -> Result<()> {
        let data = self.call("Page.captureScreenshot", json!({"format": "webp", "quality": 90}))?["data"].take();
        let picture = BASE64_STANDARD.decode(data.as_str().context("no picture")?)?;
        Ok(std::fs::write(file, picture)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
