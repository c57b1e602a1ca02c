"use strict";
// Pages work without this script; it keeps what is marked `data-live` up to date, follows topics, and keeps the theme.

const theme = document.getElementById("theme");
const root = document.documentElement;
const kept = localStorage.getItem("theme");
if (kept === "light" || kept === "dark") root.dataset.theme = kept;
theme?.addEventListener("click", () => {
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = page.getElementById(old.id);
    if (!now || now.isEqualNode(old)) continue;
    // What somebody is reading with the keyboard or has selected stays under their hand.
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const selection = getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) continue;
    const target = focused?.getAttribute("href");
    old.replaceWith(document.adoptNode(now));
    if (target) [...now.querySelectorAll("a")].find((link) => link.getAttribute("href") === target)?.focus();
  }
}

if (document.querySelector("[data-live]")) {
  let seen = null;
  let busy = false;
  const events = new EventSource("/events");
  events.addEventListener("changed", async (event) => {
    const { version } = JSON.parse(event.data);
    if (version === seen || busy || document.hidden) return;
    busy = true;
    try {
      await refresh();
      seen = version;
    } catch {
      // The console is away; the next event tries again.
    }
    busy = false;
  });
}

const tail = document.querySelector("[data-tail]");
if (tail) {
  const most = 200;
  const events = new EventSource("/tail/events?type=" + encodeURIComponent(tail.dataset.tail));
  events.addEventListener("record", (event) => {
    const told = JSON.parse(event.data);
    const row = document.createElement("tr");
    for (const name of ["at", "place", "sender", "id", "text"]) {
      const cell = document.createElement("td");
      cell.textContent = (told[name] ?? "").replace(/[^\P{C}]/gu, (char) => "\\u{" + char.codePointAt(0).toString(16) + "}");
      row.append(cell);
    }
    tail.prepend(row);
    while (tail.children.length > most) tail.lastChild.remove();
  });
}
