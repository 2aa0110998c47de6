//! The pages of reports and comparisons in a real browser, as files.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use lab::browser::Browser;
use lab::repository;

use crate::recordings::prints;

/// Returns what is hard to see on its ground: texts with a contrast below 4.5, and lines of charts below 3.
const LOW_CONTRAST: &str = r"(() => {
    const luminance = (color) => {
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const ground = luminance(dark ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)');
    const contrast = (color) => {
        const pair = [luminance(color), ground];
        return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    };
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
    const all = [...document.body.querySelectorAll('*')].filter((element) => element.checkVisibility());
    const seen = (element, color, least) => [contrast(getComputedStyle(element)[color]), least, element.outerHTML];
    const texts = all.filter((element) => [...element.childNodes].some(isText)).map(
        (element) => seen(element, element.closest('svg') ? 'fill' : 'color', 4.5));
    const lines = all.filter((element) => element.matches('path.a, path.b, polyline.law')).map(
        (element) => seen(element, 'stroke', 3));
    const bars = all.filter((element) => element.matches('.bar')).map((element) => seen(element, 'fill', 3));
    return {texts: texts.length, lines: lines.length, low: [...texts, ...lines, ...bars].filter(([c, least]) => c < least)};
})()";

/// The names of the visible parts of timelines.
const PARTS: &str =
    "[...document.querySelectorAll('.part')].filter((part) => part.checkVisibility()).map((part) => part.id)";

fn is_readable(browser: &mut Browser) -> Result<()> {
    for scheme in ["light", "dark"] {
        browser.prefer(&[("prefers-color-scheme", scheme)])?;
        let contrast = browser.evaluate(LOW_CONTRAST)?;
        ensure!(contrast["texts"].as_u64() > Some(50), "hardly a text is seen: {contrast}");
        ensure!(contrast["low"] == json!([]), "low contrast in {scheme}: {}", contrast["low"]);
    }
    Ok(())
}

/// Checks that a window of any width needs no scrolling to the side but in what is wide by itself.
fn fits(browser: &mut Browser) -> Result<()> {
    for width in [1280, 400] {
        browser.resize(width, 900)?;
        let wide = browser.evaluate("document.documentElement.scrollWidth")?;
        ensure!(wide.as_u64() <= Some(u64::from(width)), "{wide} pixels in a window of {width}");
    }
    browser.resize(1280, 900)
}

/// Checks that each chart and link has a name, as screen readers see it.
fn everything_has_a_name(browser: &mut Browser, roles: &[&str]) -> Result<()> {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}))?;
    let nodes = tree["nodes"].as_array().context("no tree")?;
    for role in roles {
        let of_role: Vec<&Value> = nodes.iter().filter(|node| node["role"]["value"] == *role).collect();
        ensure!(!of_role.is_empty(), "no {role}");
        let nameless = of_role.iter().find(|node| node["name"]["value"].as_str().is_none_or(str::is_empty));
        ensure!(nameless.is_none(), "a {role} without a name: {nameless:?}");
    }
    Ok(())
}

/// Opens a part of the timeline by the keyboard alone, goes to the next, and back.
fn parts_are_opened_by_keyboard(browser: &mut Browser) -> Result<()> {
    const ENTER: (&str, u32) = ("Enter", 13);
    const TAB: (&str, u32) = ("Tab", 9);
    ensure!(browser.evaluate(PARTS)? == json!([]), "a part is open");
    browser.press(TAB.0, TAB.1)?;
    // A timeline that is wider than the window may get the focus, to be scrolled.
    if browser.evaluate("document.activeElement.localName")? != json!("a") {
        browser.press(TAB.0, TAB.1)?;
    }
    ensure!(browser.evaluate("document.activeElement.hash")? == json!("#waits-1"), "the first link is another");
    browser.press(ENTER.0, ENTER.1)?;
    browser.wait_for(&format!("String({PARTS}) == 'waits-1'"))?;
    browser.press(TAB.0, TAB.1)?;
    ensure!(browser.evaluate("document.activeElement.textContent")? == json!("later"), "the focus is not in the part");
    browser.press(ENTER.0, ENTER.1)?;
    browser.wait_for(&format!("String({PARTS}) == 'waits-2'"))?;
    let drawn = "document.querySelectorAll('.part:target path.bar').length";
    ensure!(browser.evaluate(drawn)?.as_u64() > Some(2), "the part has no bars");
    Ok(())
}

#[test]
fn a_report_is_read_and_zoomed_in_a_browser() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut browser = Browser::start()?;
    browser.resize(1280, 900)?;
    let recording = repository("tests/fixtures/mysql-8.0.31.rec").display().to_string();
    let file = dir.path().join("page.html");
    std::fs::write(&file, prints(&["report", &recording, "--format", "html"])?)?;
    browser.open(&format!("file://{}", file.display()))?;
    parts_are_opened_by_keyboard(&mut browser)?;
    everything_has_a_name(&mut browser, &["image", "link", "navigation", "region"])?;
    fits(&mut browser)?;
    is_readable(&mut browser)?;
    ensure!(browser.errors().is_empty(), "in the console: {:?}", browser.errors());
    Ok(())
}

#[test]
fn a_comparison_is_read_in_a_browser() -> Result<()> {
    let mut browser = Browser::start()?;
    browser.resize(1280, 900)?;
    for (page, lines) in [("compare", 6), ("scaling", 1)] {
        browser.open(&format!("file://{}", repository(&format!("tests/golden/recording/{page}.html")).display()))?;
        everything_has_a_name(&mut browser, &["image"])?;
        fits(&mut browser)?;
        is_readable(&mut browser)?;
        let contrast = browser.evaluate(LOW_CONTRAST)?;
        ensure!(contrast["lines"].as_u64() >= Some(lines), "lines of {page}: {}", contrast["lines"]);
        ensure!(browser.errors().is_empty(), "in the console: {:?}", browser.errors());
    }
    Ok(())
}
