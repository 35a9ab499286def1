"use strict";
// The page stores only the latest frame and half a minute of rates, and draws everything from them.

const HISTORY = 150; // number of points in the line of a rate
const SILENT_MS = 5000; // without data for this time, although the connection is open, the observed loop is busy
const RETRY_MS = 1500;
const COUNT = new Intl.NumberFormat("en-GB");

const $ = (id) => document.getElementById(id);
let frame = null;
let source = null;
let cameAt = 0;
let paused = false;
let run = "";
let lines = new Map();

// Connection

function connect() {
  source = new EventSource("events");
  source.onmessage = (event) => {
    cameAt = Date.now();
    frame = JSON.parse(event.data);
    remember(frame);
    if (frame.ended) {
      say("ended", "Ended", "The run has ended. The page waits for the next one.");
    } else {
      say("live", paused ? "Paused" : "Live", "");
    }
    if (!paused) draw();
  };
  source.onerror = () => {
    if (!frame?.ended) say("lost", "Connection lost", `The server does not answer. ${since()} Trying again.`);
    // An error status ends an EventSource permanently; the browser reconnects only after a lost connection.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
  };
}

function since() {
  return cameAt ? `The data are from ${new Date(cameAt).toLocaleTimeString("en-GB")}.` : "No data yet.";
}

function say(state, word, trouble) {
  const status = $("status");
  status.dataset.state = state;
  put(status, word);
  put($("trouble"), trouble);
  document.body.toggleAttribute("data-stale", state === "lost" || state === "silent");
}

setInterval(() => {
  if ($("status").dataset.state === "live" && Date.now() - cameAt > SILENT_MS) {
    say("silent", "No news", `The server is running, but its event loop sends no data. ${since()}`);
  }
}, 500);

function remember(seen) {
  if (seen.run !== run) {
    run = seen.run;
    lines = new Map();
  }
  for (const room of seen.purgatories) {
    const line = lines.get(room.name) ?? [];
    line.push([room.completed_rate, room.expired_rate]);
    if (line.length > HISTORY) line.shift();
    lines.set(room.name, line);
  }
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

function duration(ms) {
  for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]]) {
    if (ms >= size) return `${Number((ms / size).toFixed(ms < 10 * size ? 1 : 0))} ${unit}`;
  }
  return `${Number(ms.toFixed(ms < 10 ? 1 : 0))} ms`;
}

function clockText(seconds) {
  const whole = Math.floor(seconds);
  const part = (number) => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${part(Math.floor(whole / 60) % 60)}:${part(whole % 60)}`;
}

function plural(number, what) {
  return `${COUNT.format(number)} ${what}${number === 1 ? "" : "s"}`;
}

function rateText(rate) {
  return rate >= 100 ? COUNT.format(Math.round(rate)) : rate.toFixed(1);
}

const sum = (items, what) => items.reduce((total, item) => total + what(item), 0);

// Drawing

function draw() {
  if (frame === null) return;
  put($("title"), frame.title);
  document.title = `${frame.title}: live page`;
  const pace = frame.speed === null ? "as fast as it can" : frame.speed === 1 ? "real time" : `${frame.speed} times real time`;
  put($("clock"), `${clockText(frame.now)}${frame.until === null ? "" : ` of ${clockText(frame.until)}`}, ${pace}`);
  drawNumbers();
  drawWheels();
  drawGroups();
  drawRooms();
  drawRates();
  drawHot();
}

function drawNumbers() {
  const rooms = frame.purgatories;
  const numbers = [
    ["parked", COUNT.format(sum(rooms, (room) => room.parked)), ""],
    ["on the timer", COUNT.format(frame.timer.size), ""],
    ["completed", rateText(sum(rooms, (room) => room.completed_rate)), "/ s"],
    ["expired", rateText(sum(rooms, (room) => room.expired_rate)), "/ s"],
  ];
  if (frame.turn) {
    numbers.push(["longest recent turn", frame.turn.recent_ms.toFixed(1), "ms"]);
    numbers.push(["longest turn", frame.turn.longest_ms.toFixed(1), "ms"]);
  }
  each($("numbers"), numbers,
    () => element("div", "", element("dt"), element("dd", "", element("span"), " ", element("small"))),
    (box, [name, value, unit]) => {
      put(box.firstChild, name);
      put(box.querySelector("span"), value);
      put(box.querySelector("small"), unit);
    });
}

function drawWheels() {
  each($("wheels"), frame.timer.levels, makeWheel, updateWheel);
  const next = frame.timer.next_ms === null ? "Nothing is due." : `The next bucket expires in ${duration(frame.timer.next_ms)}.`;
  put($("timer"), `${next} Tasks moved to a finer wheel so far: ${COUNT.format(frame.timer.cascades)}.`);
}

function makeWheel(level) {
  const strip = element("div", "buckets");
  strip.setAttribute("role", "img");
  for (let slot = 0; slot < level.wheel_size; slot += 1) strip.append(element("span", "bucket", element("i")));
  return element("div", "wheel", element("div", "", element("p", "name"), element("p", "quiet")), strip);
}

function updateWheel(row, level, index) {
  const tasks = sum(level.buckets, (bucket) => bucket[2]);
  const fullest = level.buckets.reduce((most, bucket) => (bucket[2] > most[2] ? bucket : most), [0, 0, 0]);
  put(row.querySelector(".name"), `${duration(level.tick_ms)} a bucket, ${duration(level.interval_ms)} round`);
  put(row.querySelector(".quiet"), tasks === 0 ? "empty" : `${plural(tasks, "task")}, ${COUNT.format(fullest[2])} in the fullest`);
  const strip = row.lastChild;
  const held = new Map(level.buckets.map(([slot, ahead, count]) => [slot, [ahead, count]]));
  [...strip.children].forEach((cell, slot) => {
    const [ahead, count] = held.get(slot) ?? [0, 0];
    cell.classList.toggle("hand", slot === level.slot);
    // A bucket that is not empty shows at least a line.
    cell.firstChild.style.height = count ? `${Math.max(8, (100 * count) / fullest[2])}%` : "0";
    cell.title = count ? `${plural(count, "task")}, due in ${duration(Math.max(0, ahead))}` : "empty";
  });
  const said = tasks === 0 ? "no tasks" :
    `${plural(tasks, "task")} in ${level.buckets.length} of ${level.wheel_size} buckets, at most ${fullest[2]} in one, due in ${duration(Math.max(0, fullest[1]))}`;
  attribute(strip, "aria-label", `Wheel ${index + 1}: ${said}`);
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
  const groups = frame.groups;
  $("groups-card").hidden = $("members-card").hidden = !groups;
  if (!groups) return;
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

function drawRooms() {
  each($("rooms"), frame.purgatories, () => {
    const name = element("th");
    name.scope = "row";
    return element("tr", "", name, ...Array.from({ length: 8 }, () => element("td")));
  }, (row, room) => {
    const cells = [room.name, ...[room.parked, room.keys, room.completed, room.expired, room.withdrawn, room.failed].map(
      (number) => COUNT.format(number)), duration(1000 * room.wait_p50), duration(1000 * room.wait_p99)];
    cells.forEach((text, index) => put(row.children[index], text));
  });
}

function drawRates() {
  each($("rates"), frame.purgatories, () => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    for (const classes of ["done", "late"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", classes);
      svg.append(path);
    }
    return element("div", "rate", element("p", "", element("b"), element("span", "quiet")), svg);
  }, (row, room) => {
    const line = lines.get(room.name) ?? [];
    const top = Math.max(0.1, ...line.map(([done, late]) => Math.max(done, late)));
    put(row.querySelector("b"), room.name);
    put(row.querySelector("span"), `${rateText(room.completed_rate)} completed, ${rateText(room.expired_rate)} expired`);
    const svg = row.lastChild;
    [...svg.children].forEach((path, which) => {
      const from = HISTORY - line.length;
      path.setAttribute("d", line.map((rates, index) =>
        `${index ? "L" : "M"}${from + index} ${(96 - (92 * rates[which]) / top).toFixed(1)}`).join(""));
    });
    attribute(svg, "aria-label", `${room.name}, each second: ${rateText(room.completed_rate)} completed, ${rateText(room.expired_rate)} expired, at most ${rateText(top)} lately`);
  });
}

function drawHot() {
  each($("hot"), frame.purgatories, () => element("div", "hot", element("h3"), element("ol"), element("p", "quiet")),
    (box, room) => {
      put(box.firstChild, room.name);
      // If each key has one operation, there is no ranking.
      const hot = room.hot.filter(([, number]) => number > 1);
      each(box.querySelector("ol"), hot, () => element("li", "", element("span"), element("b")),
        (row, [key, number]) => {
          put(row.firstChild, key);
          put(row.lastChild, COUNT.format(number));
        });
      put(box.lastChild, hot.length ? "" : room.keys ? `one on each of ${plural(room.keys, "key")}` : "no operation waits");
    });
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
    // as above
  }
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if ($("status").dataset.state === "live") put($("status"), paused ? "Paused" : "Live");
  if (!paused) draw();
});

connect();
