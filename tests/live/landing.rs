//! The landing page in a real browser, while a recording is played.

use std::env;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use lab::agent::{free_port, program};
use lab::browser::Browser;
use lab::http;
use lab::repository;
use lab::server::wait_for;

const LIGHT: (&str, &str) = ("prefers-color-scheme", "light");
const DARK: (&str, &str) = ("prefers-color-scheme", "dark");
const STILL: (&str, &str) = ("prefers-reduced-motion", "reduce");

/// Returns the texts whose contrast to what is behind them is below 4.5, with the contrast.
const LOW_CONTRAST: &str = r"(() => {
    const luminance = (color) => {
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        const own = getComputedStyle(element).backgroundColor;
        return own === 'rgba(0, 0, 0, 0)' ? ground(element.parentElement) : own;
    };
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
    const texts = [...document.body.querySelectorAll('*')].filter(
        (element) => element.checkVisibility() && [...element.childNodes].some(isText));
    const contrasts = texts.map((element) => {
        const pair = [getComputedStyle(element).color, ground(element)].map(luminance);
        return [(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), element.textContent];
    });
    return {texts: contrasts.length, low: contrasts.filter(([contrast]) => contrast < 4.5)};
})()";

/// Returns the visible histogram: the latch, and the number of bars.
const HISTOGRAM: &str = "(() => { const shown = [...document.querySelectorAll('.detail')].filter(\
    (detail) => detail.checkVisibility()); return shown.map((detail) => \
    [detail.id, detail.querySelectorAll('.histogram rect').length]); })()";

/// A recording that is being served.
struct Replayed {
    child: Child,
    address: String,
}

impl Replayed {
    /// Plays the repository's recording again and again.
    fn start() -> Result<Replayed> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let child = Command::new(program())
            .args(["replay", "--loop", "--listen", &address])
            .arg(repository("tests/fixtures/mysql-8.0.31.rec"))
            .stdout(Stdio::null())
            .spawn()?;
        let replayed = Replayed { child, address };
        wait_for("the page", Duration::from_secs(20), || {
            Ok(http::get(&replayed.address, "/").ok().filter(|page| page.body.contains("class=\"latch\"")))
        })?;
        Ok(replayed)
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Replayed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens the page and waits until it is live.
fn open_live(browser: &mut Browser, url: &str) -> Result<()> {
    browser.open(url)?;
    browser.wait_for("document.querySelector('#link').textContent == 'Live'")
}

fn is_readable(browser: &mut Browser) -> Result<()> {
    let contrast = browser.evaluate(LOW_CONTRAST)?;
    ensure!(contrast["texts"].as_u64() > Some(50), "hardly a text is seen: {contrast}");
    ensure!(contrast["low"] == json!([]), "contrast below 4.5: {}", contrast["low"]);
    Ok(())
}

/// Checks that nothing reaches beyond a window of this width. A phone's browser would widen its window instead.
fn fits(browser: &mut Browser, width: u32) -> Result<()> {
    browser.resize(width, 800)?;
    let wide = format!(
        "[...document.querySelectorAll('body *')].filter((element) => element.checkVisibility() && \
         element.getBoundingClientRect().right > {width} + 0.5).map((element) => element.outerHTML).concat( \
         document.documentElement.scrollWidth > {width} ? ['the page'] : [])"
    );
    let wide = browser.evaluate(&wide)?;
    ensure!(wide == json!([]), "wider than {width} pixels: {wide}");
    Ok(())
}

/// Returns the only latch whose histogram is visible.
fn selected(browser: &mut Browser) -> Result<String> {
    let shown = browser.evaluate(HISTOGRAM)?;
    let [Value::Array(shown)] = &shown.as_array().context("no list")?[..] else {
        anyhow::bail!("not one histogram is visible: {shown}");
    };
    ensure!(shown[1].as_u64() > Some(0), "{} has no bar", shown[0]);
    Ok(shown[0].as_str().context("no id")?.to_owned())
}

fn updates_without_reload(browser: &mut Browser) -> Result<()> {
    browser.evaluate("window.marker = document.querySelector('tbody tr'); window.before = figures.textContent; 1")?;
    browser.wait_for("figures.textContent != before")?;
    ensure!(browser.evaluate("marker.isConnected")? == json!(true), "rows are replaced instead of changed");
    Ok(())
}

fn latches_are_selected(browser: &mut Browser) -> Result<()> {
    let first = selected(browser)?;
    browser.click("tbody tr:nth-child(3) td:nth-child(2)")?;
    browser.wait_for("location.hash.startsWith('#latch/')")?;
    let clicked = selected(browser)?;
    ensure!(clicked != first && browser.evaluate("location.hash.slice(1)")? == json!(clicked), "{first} {clicked}");
    let marked = browser.evaluate("document.querySelector('[aria-current]').hash.slice(1)")?;
    ensure!(marked == json!(clicked), "{marked} is marked");
    browser.evaluate("document.querySelector('[aria-current]').focus()")?;
    browser.press("ArrowUp", 38)?;
    browser.wait_for(&format!("location.hash.slice(1) != {}", json!(clicked)))?;
    let above = selected(browser)?;
    let (focused, hash) = (browser.evaluate("document.activeElement.hash")?, browser.evaluate("location.hash")?);
    ensure!(focused == hash && hash == json!(format!("#{above}")), "{focused} {hash} {above}");
    // The selection and the focus survive an update.
    updates_without_reload(browser)?;
    let after = browser.evaluate("document.activeElement.hash")?;
    ensure!(selected(browser)? == above && after == focused, "after an update {after}");
    Ok(())
}

/// Checks that everything that can be used has a name, as screen readers see it.
fn everything_has_a_name(browser: &mut Browser) -> Result<()> {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}))?;
    let nodes = tree["nodes"].as_array().context("no tree")?;
    for role in ["link", "button", "table", "region", "navigation"] {
        let of_role: Vec<&Value> = nodes.iter().filter(|node| node["role"]["value"] == role).collect();
        ensure!(!of_role.is_empty(), "no {role}");
        let nameless = of_role.iter().find(|node| node["name"]["value"].as_str().is_none_or(str::is_empty));
        ensure!(nameless.is_none(), "a {role} without a name: {nameless:?}");
    }
    Ok(())
}

#[test]
fn the_landing_page_is_live_and_readable_in_a_browser() -> Result<()> {
    let replayed = Replayed::start()?;
    let mut browser = Browser::start()?;
    browser.resize(1280, 900)?;
    browser.prefer(&[LIGHT])?;
    open_live(&mut browser, &replayed.url())?;
    updates_without_reload(&mut browser)?;
    latches_are_selected(&mut browser)?;
    if let Some(file) = env::var_os("ARMTRACE_PICTURE") {
        browser.resize(1280, 700)?;
        browser.evaluate("scrollTo(0, 0)")?;
        browser.screenshot(Path::new(&file))?;
    }
    everything_has_a_name(&mut browser)?;
    for width in [1280, 961, 769] {
        fits(&mut browser, width)?;
    }
    is_readable(&mut browser)?;
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(ground)?;
    browser.prefer(&[DARK, STILL])?;
    is_readable(&mut browser)?;
    let dark = browser.evaluate(ground)?;
    ensure!(dark != light, "dark and light are both {dark}");
    browser.click("#theme")?;
    ensure!(browser.evaluate(ground)? == light, "the button changes nothing");
    let moves = browser.evaluate("getComputedStyle(document.querySelector('rect')).transitionDuration")?;
    ensure!(moves == json!("0s"), "bars move for {moves}");
    fits(&mut browser, 360)?;
    let requested = browser.requests();
    let foreign =
        |url: &&String| !url.starts_with(&replayed.url()) && !["about:blank", "data:,"].contains(&url.as_str());
    ensure!(!requested.iter().any(|url| foreign(&url)), "requests to others: {requested:?}");
    ensure!(browser.errors().is_empty(), "in the console: {:?}", browser.errors());
    // The figures of an agent that has ended are not live, and still readable.
    drop(replayed);
    browser.wait_for("document.querySelector('#link').textContent.startsWith('Not live')")?;
    is_readable(&mut browser)
}

#[test]
fn the_landing_page_needs_no_script() -> Result<()> {
    let replayed = Replayed::start()?;
    let mut browser = Browser::start()?;
    browser.resize(360, 740)?;
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}))?;
    browser.open(&replayed.url())?;
    let first = selected(&mut browser)?;
    let second = browser.evaluate("document.querySelectorAll('a.latch')[1].hash.slice(1)")?;
    browser.open(&format!("{}#{}", replayed.url(), second.as_str().context("no link")?))?;
    ensure!(selected(&mut browser)? != first, "the address selects nothing");
    ensure!(browser.evaluate("document.querySelector('#theme').hidden")? == json!(true), "a button without a script");
    fits(&mut browser, 360)
}
