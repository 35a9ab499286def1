"use strict";
// The page stores only the latest state of the groups, and draws everything from it.

const INTERVAL_MS = 1000;
const COUNT = new Intl.NumberFormat("en-GB");

const $ = (id) => document.getElementById(id);
let frame = null;
let cameAt = 0;
let paused = false;

// Connection

async function ask() {
  try {
    const response = await fetch("groups.json");
    if (!response.ok) throw new Error("the event loop does not answer");
    frame = await response.json();
    cameAt = Date.now();
    say("live", paused ? "Paused" : "Live", "");
    if (!paused) draw();
  } catch {
    const since = cameAt ? `The data are from ${new Date(cameAt).toLocaleTimeString("en-GB")}.` : "No data yet.";
    say("lost", "Connection lost", `The program does not answer. ${since} Trying again.`);
  }
  setTimeout(ask, INTERVAL_MS);
}

function say(state, word, trouble) {
  const status = $("status");
  status.dataset.state = state;
  put(status, word);
  put($("trouble"), trouble);
  document.body.toggleAttribute("data-stale", state === "lost");
}

// Helpers

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// Create one child per item, and then only update it, so that an element keeps its focus.
function each(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (index === parent.children.length) parent.append(make(item));
    update(parent.children[index], item, index);
  });
}

function element(name, classes, ...children) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  made.append(...children);
  return made;
}

function clockText(seconds) {
  const whole = Math.floor(seconds);
  const part = (number) => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${part(Math.floor(whole / 60) % 60)}:${part(whole % 60)}`;
}

function plural(number, what) {
  return `${COUNT.format(number)} ${what}${number === 1 ? "" : "s"}`;
}

// Drawing

function draw() {
  if (!frame) return;
  put($("title"), frame.title);
  document.title = frame.title;
  const until = frame.until === null ? "" : ` of ${clockText(frame.until)}`;
  const speed = frame.speed === null ? ", as fast as possible" : frame.speed === 1 ? "" : `, ${frame.speed} times real time`;
  put($("clock"), `${clockText(frame.now)}${until}${speed}`);
  drawGroups();
}

function drawShares(parent, shares, what) {
  if (!parent.firstChild) parent.append(element("div", "bar"), element("dl", "legend"));
  const [bar, legend] = parent.children;
  const entries = Object.entries(shares);
  bar.setAttribute("aria-hidden", "true"); // the list below has the same content
  each(bar, entries, () => element("i"), (part, [state, number]) => {
    part.dataset.state = state;
    part.style.flexGrow = number;
    part.hidden = number === 0;
  });
  legend.setAttribute("aria-label", what);
  each(legend, entries, () => element("div", "", element("dt"), element("dd")), (row, [state, number]) => {
    row.dataset.state = state;
    put(row.firstChild, state);
    put(row.lastChild, COUNT.format(number));
  });
}

function drawGroups() {
  const groups = frame;
  drawShares($("states"), groups.states, "Groups by state");
  drawShares($("members"), groups.members, "Members by state");
  each($("tiles"), groups.list,
    () => element("li", "", element("span"), element("span", "hidden")),
    (tile, [name, state, generation, members]) => {
      tile.dataset.state = state;
      tile.firstChild.setAttribute("aria-hidden", "true");
      put(tile.firstChild, name.match(/\d+$/)?.[0] ?? name.slice(0, 12));
      put(tile.lastChild, `${name}: ${state}, generation ${generation}, ${plural(members, "member")}`);
      tile.title = tile.lastChild.textContent;
    });
  const more = groups.number - groups.list.length;
  put($("untiled"), more > 0 ? `and ${COUNT.format(more)} more` : "");
}

// Buttons

function choose(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try {
  chosen = localStorage.getItem("theme");
} catch {
  // without storage, the choice lasts until the page is closed
}
choose(chosen ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => chosen === null && choose(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  choose(chosen);
  try {
    localStorage.setItem("theme", chosen);
  } catch {
    // without storage, the choice lasts until the page is closed
  }
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if ($("status").dataset.state === "live") put($("status"), paused ? "Paused" : "Live");
  if (!paused) draw();
});

ask();
