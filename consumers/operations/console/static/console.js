"use strict";
// Pages work without this script but the live tail: it keeps what is marked `data-live` up to date, copies, moves
// through rows, and keeps the theme.

const root = document.documentElement;
const announced = document.getElementById("announced");
const kept = localStorage.getItem("theme");
if (kept === "light" || kept === "dark") root.classList.add(kept);

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    announced.textContent = "Copied";
  }
  if (event.target.closest("#theme")) {
    const isDark = root.classList.contains("dark")
      || (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.classList.remove("light", "dark");
    root.classList.add(isDark ? "light" : "dark");
    localStorage.setItem("theme", isDark ? "light" : "dark");
  }
});

// Keys move and open; none of them has an effect on the bus.
const goes = {
  o: "/", d: "/letters", a: "/approvals", c: "/conversations", e: "/agents", g: "/groups", p: "/processes", m: "/costs",
  u: "/audit", t: "/tail",
};
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const rows = [...document.querySelectorAll("a.row, .ask h2 a")];
  const here = rows.indexOf(document.activeElement);
  if (before === "g" && goes[event.key]) location.href = goes[event.key];
  else if (event.key === "/") {
    event.preventDefault();
    const search = document.querySelector(".top input");
    if (search?.offsetParent) search.focus();
    else location.href = "/conversations";
  } else if (event.key === "?") document.getElementById("keys")?.togglePopover();
  else if (event.key === "j") rows[Math.min(here + 1, rows.length - 1)]?.focus();
  else if (event.key === "k") rows[Math.max(here - 1, 0)]?.focus();
  else if (event.key === "y") document.querySelector("main [data-copy]")?.click();
  before = event.key === "g" && before !== "g" ? "g" : "";
});

// Follows a stream while the page is in sight: a browser has six connections for all tabs of one host.
function follow(url, handlers) {
  let events = null;
  const toggle = () => {
    if (document.hidden) {
      events?.close();
      events = null;
    } else if (!events) {
      events = new EventSource(url);
      for (const [name, handler] of Object.entries(handlers)) events.addEventListener(name, handler);
    }
  };
  document.addEventListener("visibilitychange", toggle);
  addEventListener("pagehide", () => events?.close());
  toggle();
}

// Makes *old* like *now* and leaves untouched what is the same: nothing blinks, and what is hovered or open stays so.
function adapt(old, now) {
  if (old.isEqualNode(now)) return;
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
    old.replaceWith(document.adoptNode(now));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = now.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const olds = [...old.childNodes];
  const nows = [...now.childNodes];
  nows.forEach((child, at) => (olds[at] ? adapt(olds[at], child) : old.append(document.adoptNode(child))));
  for (const child of olds.slice(nows.length)) child.remove();
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (answer.status === 404) return false;
  if (!answer.ok || answer.redirected) throw new Error(`${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const selection = getSelection();
  let isKept = false;
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = page.getElementById(old.id);
    if (!now) continue;
    // What somebody reads with the keyboard or has selected stays under their hand.
    if (old.contains(document.activeElement)) {
      isKept = true;
      continue;
    }
    // A row must not change under a pointer that is about to press its button.
    if (old.querySelector(".button:hover, button:hover")) continue;
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) continue;
    adapt(old, now);
  }
  const live = document.getElementById("live");
  live.classList.remove("late");
  if (isKept) live.append(" · the part in focus waits");
  if (document.title !== page.title) {
    document.title = page.title;
    const title = page.querySelector("h1")?.textContent.trim();
    if (location.pathname === "/" && title) announced.textContent = title;
  }
  return true;
}

if (document.querySelector("main [data-live]")) {
  const live = document.getElementById("live");
  let seen = null;
  let busy = false;
  let missed = 0;
  let isGone = false;
  let restsUntil = 0;
  const look = async (version) => {
    // A page that takes long to make is asked for more rarely: a tab takes a tenth of the console's time at most.
    if (version === seen || busy || isGone || document.hidden || performance.now() < restsUntil) return;
    busy = true;
    const begun = performance.now();
    try {
      if (!(await refresh())) {
        // What the page showed stays to be read; nothing new can come.
        isGone = true;
        live.classList.add("late");
        live.textContent = "Not here any more: this is how it was";
        return;
      }
      restsUntil = performance.now() + 9 * (performance.now() - begun);
      seen = version;
      missed = 0;
      lastSeen = new Date();
    } catch {
      missed += 1;
    }
    busy = false;
    if (missed >= 3) away();
  };
  // The figures stay, and the page tells of when they are.
  let lastSeen = new Date();
  const away = () => {
    live.classList.add("late");
    live.textContent = `Not answering since ${lastSeen.toISOString().slice(11, 19)} UTC`;
  };
  follow("/events", {
    changed: (event) => look(JSON.parse(event.data).version),
    error: () => {
      missed += 1;
      if (missed >= 3) away();
    },
  });
}

const tail = document.getElementById("tail");
if (tail) {
  const most = 200;
  const state = document.getElementById("tail-state");
  const pause = document.getElementById("tail-pause");
  const waiting = [];
  let isPaused = false;
  let leftOut = 0;
  const visible = (text) => (text ?? "").replace(/[^\P{C}]/gu, (char) => "\\u{" + char.codePointAt(0).toString(16) + "}");
  const cell = (kind, ...parts) => {
    const found = document.createElement("td");
    found.setAttribute("role", "cell");
    found.className = kind;
    found.append(...parts);
    return found;
  };
  const part = (name, kind, text) => {
    const found = document.createElement(name);
    found.className = kind;
    found.textContent = visible(text);
    found.title = visible(text);
    return found;
  };
  const show = (told) => {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    const title = part("a", "row strong clamp", told.type ?? told.place);
    if (told.conversation) title.href = "/conversations?id=" + encodeURIComponent(told.conversation);
    const what = [title];
    if (told.kind === "dlq") what.push(part("span", "state fault", "dead letter"));
    row.append(
      cell("", ...what, part("small", "one", told.text)),
      cell("full", part("span", "clamp", told.sender || "?"), part("small", "clamp", "to " + (told.recipient || "everybody"))),
      cell("num", part("time", "", told.at?.slice(11, 23))),
    );
    tail.prepend(row);
    while (tail.children.length > most) tail.lastChild.remove();
  };
  const tell = () => {
    const words = isPaused ? `paused, ${waiting.length} wait` : leftOut ? `${leftOut} left out: too many to show` : "live";
    state.hidden = false;
    state.textContent = words;
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) for (const told of waiting.splice(0)) show(told);
    tell();
  });
  const query = new URLSearchParams({ type: tail.dataset.type, agent: tail.dataset.agent });
  follow("/tail/events?" + query, {
    record: (event) => {
      const told = JSON.parse(event.data);
      if (told.left_out) leftOut += told.left_out;
      else if (isPaused) {
        waiting.push(told);
        if (waiting.length > most) waiting.shift();
      } else show(told);
      tell();
    },
  });
}
