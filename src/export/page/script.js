"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const RETRY = 5000;
  let chosen = "", events = null, retry = 0;

  // Storage may be forbidden; the theme is then that of this visit.
  const saved = () => { try { return localStorage.getItem("armtrace-theme"); } catch { return null; } };
  const save = (theme) => { try { localStorage.setItem("armtrace-theme", theme); } catch {} };
  if (saved()) root.dataset.theme = saved();
  root.classList.add("js");

  // Lets the reader choose between dark and light.
  const offerTheme = () => {
    const button = $("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
    const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.onclick = () => { save(root.dataset.theme = isDark() ? "light" : "dark"); show(); };
    dark.onchange = show;
    button.hidden = false;
    show();
  };

  // Marks the chosen latch in `page`: that of the address, or else the one that was first when the page was opened.
  const select = (page) => {
    const wanted = location.hash.slice(1);
    if (wanted.startsWith("latch/")) chosen = wanted;
    chosen ||= page.querySelector(".detail")?.id ?? "";
    let found = false;
    for (const detail of page.querySelectorAll(".detail")) {
      const is = detail.id === chosen;
      detail.classList.toggle("selected", is);
      found ||= is;
    }
    for (const link of page.querySelectorAll("a.latch")) {
      if (link.hash.slice(1) === chosen) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const gone = page.querySelector("#gone");
    if (gone) gone.hidden = found;
  };

  // Chooses the latch of a link as following the link would, but scrolls only as far as it takes.
  const choose = (link) => {
    history.replaceState(null, "", link.hash);
    select(document);
    $(chosen)?.scrollIntoView({ block: "nearest" });
  };

  const click = (event) => {
    const row = event.target.closest("tr[id]");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey || getSelection().toString()) return;
    event.preventDefault();
    choose(row.querySelector("a.latch"));
  };

  // The arrow keys go from latch to latch.
  const key = (event) => {
    const row = document.activeElement.closest?.("tr[id]");
    const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    const link = next?.querySelector("a.latch");
    if (!link) return;
    event.preventDefault();
    link.focus();
    choose(link);
  };

  // Makes `old` like `now`. Elements that stay are kept, and with them the focus, and what the reader has marked.
  const morph = (old, now) => {
    for (const name of old.getAttributeNames()) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let at = old.firstChild;
    for (const next of [...now.childNodes]) {
      const same = next.id ? byId.get(next.id) : at && !at.id && at.nodeName === next.nodeName ? at : null;
      if (!same) {
        old.insertBefore(next, at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      if (same.nodeType === Node.ELEMENT_NODE) morph(same, next);
      else if (same.data !== next.data) same.data = next.data;
    }
    while (at) {
      const rest = at.nextSibling;
      at.remove();
      at = rest;
    }
  };

  const show = (html) => {
    const now = new DOMParser().parseFromString(html, "text/html").querySelector("main");
    const focused = document.activeElement;
    select(now);
    morph($("figures"), now);
    // An element that was moved has lost the focus.
    if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  };

  // A change is read aloud, so it is said once.
  const say = (text, { isLive = false, isStale = false } = {}) => {
    const link = $("link");
    if (link.textContent !== text) link.textContent = text;
    link.classList.toggle("live", isLive);
    $("figures").classList.toggle("stale", isStale);
  };

  const connect = () => {
    clearTimeout(retry);
    if (events || document.hidden) return;
    events = new EventSource("events");
    events.onmessage = (event) => {
      show(event.data);
      say("Live", { isLive: true });
    };
    events.onerror = () => {
      say("Not live: armtrace has ended, or as many pages are open as it serves. Trying again.", { isStale: true });
      // After some errors the browser does not try again by itself.
      disconnect();
      retry = setTimeout(connect, RETRY);
    };
  };

  // A page that nobody looks at costs nothing.
  const disconnect = () => {
    events?.close();
    events = null;
  };

  addEventListener("DOMContentLoaded", () => {
    offerTheme();
    say("Connecting");
    select(document);
    addEventListener("hashchange", () => select(document));
    $("figures").addEventListener("click", click);
    addEventListener("keydown", key);
    document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    connect();
  });
})();
