"use strict";
// The page stores only the latest frame, the chosen purgatory, and the last search, and draws everything from them.

const SILENT_MS = 5000; // if no data arrives for this long although the connection is open, the event loop is busy
const RETRY_MS = 1500;
const COUNT = new Intl.NumberFormat("en-GB");
// The outcomes in a frame, and their names on the page.
const RATES = [["waited", "completed"], ["immediate", "at once"], ["expired", "expired"], ["failed", "failed"], ["refused", "refused"]];

const $ = (id) => document.getElementById(id);
let frame = null;
let source = null;
let cameAt = 0;
let paused = false;
let chosen = ""; // the name of a purgatory
let searched = null; // the result of the last search, shown instead of the operations that have waited longest
let searching = 0;

// Connection

function connect() {
  source = new EventSource("events");
  source.onmessage = (event) => {
    cameAt = Date.now();
    frame = JSON.parse(event.data);
    if (chosen === "" && answering().length) {
      chosen = answering().reduce((fullest, one) => (one.parked > fullest.parked ? one : fullest)).name;
    }
    const closing = frame.rooms.every((room) => room.closed);
    say("live", paused ? "Paused" : closing ? "Closing" : "Live", "");
    if (!paused) draw();
  };
  source.onerror = () => {
    say("lost", "Connection lost", `The server does not answer. ${since()} Trying again.`);
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
    say("silent", "No news", `The server is running, but its event loop sends no data: it is busy or blocked. ${since()}`);
  }
}, 500);

// Helpers.  All texts from the server become text nodes or attributes, never HTML.

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

function button(text, classes, click) {
  const made = element("button", classes, text);
  made.type = "button";
  made.addEventListener("click", click);
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function duration(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (seconds >= size) return `${Number((seconds / size).toFixed(seconds < 10 * size ? 1 : 0))} ${unit}`;
  }
  const ms = seconds * 1000;
  return `${Number(ms.toFixed(ms < 10 ? 1 : 0))} ms`;
}

// A time of the server's clock, in the zone of the browser; with its date if it is on another day.
function clockTime(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" });
  return at.toDateString() === new Date(frame.time * 1000).toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}

function waits(number) {
  return number === 1 ? "waits" : "wait";
}

function plural(number, what) {
  return `${COUNT.format(number)} ${what}${number === 1 ? "" : "s"}`;
}

function rateText(rate) {
  if (rate === null || rate === undefined) return "–";
  return rate >= 100 ? COUNT.format(Math.round(rate)) : rate.toFixed(1);
}

function rateOfMinute(count, seconds) {
  if (seconds <= 0) return "–";
  return count > 0 && count / seconds < 0.05 ? "< 0.1" : rateText(count / seconds);
}

const sum = (items, what) => items.reduce((total, item) => total + what(item), 0);
const most = (items, what) => items.reduce((largest, item) => Math.max(largest, what(item)), 0);
const answering = () => frame.rooms.filter((room) => !room.silent);
const room = () => answering().find((one) => one.name === chosen) ?? answering()[0];

// Drawing

function draw() {
  if (!frame) return;
  const now = room();
  put($("title"), frame.title);
  document.title = `${frame.title}: ${COUNT.format(sum(answering(), (one) => one.parked))} waiting`;
  const { worker } = frame;
  put($("worker"), `worker ${worker.pid} on ${worker.host}, watched for ${duration(worker.uptime)}; ` +
    `purgatory ${worker.purgatory}, ${worker.compiled ? "compiled" : "interpreted"}, Python ${worker.python}`);
  drawFindings();
  drawNumbers();
  drawRooms();
  if (now) {
    for (const name of document.querySelectorAll(".room")) put(name, now.name);
    drawLines(now);
    drawKinds(now);
    drawFailures(now);
    drawHot(now);
    drawChecks(now);
    drawOperations(now);
  }
  drawRelays();
  drawWorkers();
  drawTimers();
  for (const box of document.querySelectorAll(".scroll")) box.toggleAttribute("data-cut", box.scrollWidth > box.clientWidth + 1);
  const { cost } = frame;
  put($("cost"), `Frame ${COUNT.format(frame.number)} for ${plural(frame.viewers, "viewer")} took ` +
    `${duration(cost.busy)} of work in slices of at most ${duration(cost.longest)}; ` +
    `the page uses at most ${Math.round(cost.share * 100)}% of the loop's time.`);
}

function drawFindings() {
  put($("no-findings"), frame.findings.length ? "" : "Nothing stands out.");
  each($("findings"), frame.findings, () => element("li", "", element("b"), element("span")), (row, finding) => {
    row.dataset.level = finding.level;
    const where = finding.room !== null && frame.rooms.length > 1 ? `${finding.room}: ` : "";
    put(row.firstChild, finding.level[0].toUpperCase() + finding.level.slice(1));
    put(row.lastChild, where + finding.text);
  });
}

function drawNumbers() {
  const rooms = answering();
  const rate = (name) => (rooms.some((one) => one.rates[name] === null) ? null : sum(rooms, (one) => one.rates[name]));
  const [longest] = rooms.flatMap((one) => one.longest.slice(0, 1)).sort((one, other) => other.waited - one.waited);
  const numbers = [
    ["waiting", COUNT.format(sum(rooms, (one) => one.parked)), ""],
    ["longest waiting", longest ? duration(longest.waited) : "–", longest ? `since ${clockTime(longest.since)}\n${endsText(longest)}` : ""],
    ...RATES.filter(([name]) => name !== "immediate").map(([name, shown]) => [shown, rateText(rate(name)), "/ s now"]),
    ["late, p99 of a minute", duration(most(rooms, (one) => one.minute.lateness.p99)), ""],
    ["longest recent turn", duration(frame.loop.lag), ""],
  ];
  each($("numbers"), numbers,
    () => element("div", "", element("dt"), element("dd", "", element("span"), " ", element("small"))),
    (box, [name, value, unit]) => {
      put(box.firstChild, name);
      put(box.querySelector("span"), value);
      put(box.querySelector("small"), unit);
    });
}

function leftText(operation) {
  return operation.left === null ? "no deadline" : operation.left < 0 ? "due" : duration(operation.left);
}

function endsText(operation) {
  return operation.left === null || operation.left < 0 ? leftText(operation) : `ends in ${leftText(operation)}`;
}

function full(limits, parked) {
  const shares = [];
  if (limits.max_parked !== null) shares.push(parked / limits.max_parked);
  if (limits.max_parked_per_key !== null) shares.push(limits.fullest_key / limits.max_parked_per_key);
  return shares.length ? Math.max(...shares) : null;
}

function drawRooms() {
  each($("rooms"), frame.rooms, () => {
    const name = element("th", "", button("", "link", (event) => choose(event.currentTarget.textContent)));
    name.scope = "row";
    return element("tr", "", name, ...Array.from({ length: 13 }, () => element("td")));
  }, (row, one) => {
    const link = row.querySelector("button");
    put(link, one.name);
    attribute(link, "aria-pressed", String(one.name === room()?.name));
    const cells = [...row.children].slice(1);
    if (one.silent) {
      cells.forEach((cell, index) => put(cell, index ? "" : "its thread does not answer"));
      return;
    }
    const { minute } = one;
    const share = full(one.limits, one.parked);
    const [longest] = one.longest;
    const texts = [COUNT.format(one.parked), COUNT.format(one.keys), share === null ? "no limit" : `${Math.round(100 * share)}%`,
      longest ? duration(longest.waited) : "–", longest ? leftText(longest) : "–",
      ...RATES.map(([name]) => rateOfMinute(minute[name], minute.seconds)),
      ...[minute.wait.p50, minute.wait.p99].map((value) => (minute.wait.count ? duration(value) : "–")),
      minute.lateness.count ? duration(minute.lateness.p99) : "–"];
    cells.forEach((cell, index) => put(cell, texts[index]));
    cells[2].classList.toggle("alert", share !== null && share >= 0.8);
    cells[8].classList.toggle("alert", minute.failed > 0);
    cells[9].classList.toggle("alert", minute.refused > 0);
  });
  put($("minute"), duration(most(answering(), (one) => one.minute.seconds)));
}

function choose(name) {
  chosen = name;
  searched = null;
  $("reset").hidden = true;
  put($("found"), "");
  draw();
}

// Lines: `ago` is in seconds before now, from left to right.

function drawLines(one) {
  const { lines } = one;
  const span = Math.max(10, ...lines.ago);
  const pictures = [
    ["waiting", [["parked", lines.parked]], COUNT.format(one.parked)],
    ["ended or refused per second", RATES.map(([name, shown]) => [shown, lines[name]]), null],
  ];
  each($("lines"), pictures, () => {
    const picture = svg("svg", { viewBox: "0 0 300 100", preserveAspectRatio: "none", role: "img" });
    for (let line = 0; line < RATES.length; line += 1) picture.append(svg("path", {}));
    return element("div", "line", element("p", "", element("b"), element("span", "quiet")), picture, element("ul", "legend"));
  }, (box, [what, series, figure], index) => {
    const top = Math.max(index ? 0.1 : 1, ...series.flatMap(([, values]) => values));
    put(box.querySelector("b"), what);
    put(box.querySelector(".quiet"), `last ${duration(span)}, top ${index ? rateText(top) : COUNT.format(top)}`);
    const picture = box.querySelector("svg");
    [...picture.children].forEach((path, which) => {
      const [name, values] = series[which] ?? ["", []];
      path.dataset.line = name;
      path.setAttribute("d", values.map((value, place) =>
        `${place ? "L" : "M"}${(300 * (1 - lines.ago[place] / span)).toFixed(1)} ${(96 - (92 * value) / top).toFixed(1)}`).join(""));
    });
    const said = series.map(([name, values]) => `${name} ${index ? rateText(values.at(-1)) : figure}`).join(", ");
    attribute(picture, "aria-label", `${one.name}, ${what}: now ${said}; at most ${rateText(top)} in the last ${duration(span)}`);
    const legend = box.querySelector("ul");
    legend.hidden = index === 0;
    each(legend, index ? series : [], () => {
      const swatch = svg("svg", { class: "swatch", viewBox: "0 0 28 10", "aria-hidden": "true" });
      swatch.append(svg("line", { x1: 0, x2: 28, y1: 5, y2: 5 }));
      return element("li", "", swatch, element("span"));
    }, (row, [name]) => {
      row.firstChild.dataset.line = name;
      put(row.lastChild, name);
    });
  });
}

function drawKinds(one) {
  each($("kinds"), one.kinds.slice(0, 30), () => {
    const name = element("th", "", button("", "link", (event) => {
      $("kind").value = event.currentTarget.textContent;
      $("key").value = "";
      search();
    }));
    name.scope = "row";
    return element("tr", "", name, ...Array.from({ length: 4 }, () => element("td")));
  }, (row, kind) => {
    put(row.querySelector("button"), kind.kind);
    const texts = [kind.parked, kind.endless, kind.unawaited].map((number) => COUNT.format(number));
    [...texts, duration(kind.oldest)].forEach((text, index) => put(row.children[index + 1], text));
  });
  const { edges, parked } = one.ages;
  const whole = Math.max(1, sum(parked, (number) => number));
  const labels = [...edges.map((edge) => `under ${duration(edge)}`), "older"];
  each($("ages"), parked, () =>
    element("div", "", element("dt"), element("dd", "bar", element("i")), element("dd", "bar-number")),
  (row, number, index) => {
    put(row.children[0], labels[index]);
    attribute(row.children[1], "aria-hidden", "true");
    row.children[1].firstChild.style.width = `${(100 * number) / whole}%`;
    put(row.children[2], COUNT.format(number));
  });
  const { survey } = one;
  put($("survey"), survey.complete
    ? `Kinds, ages and keys are those of ${duration(survey.ago)} ago; visiting ${plural(survey.visited, "operation")} took ${duration(survey.seconds)}.`
    : `So far, ${COUNT.format(survey.visited)} of ${plural(one.parked, "operation")} have been visited.`);
  const names = ["", ...one.kinds.map((kind) => kind.kind)];
  const select = $("kind");
  if (document.activeElement !== select) {
    const value = select.value;
    each(select, names, () => element("option"), (option, name) => {
      put(option, name || "every kind");
      option.value = name;
    });
    select.value = names.includes(value) ? value : "";
  }
}

// Keys

function keyName() {
  return element("span", "name", button("", "link", (event) => {
    $("key").value = event.currentTarget.dataset.key;
    $("kind").value = "";
    search(event.currentTarget.dataset.id);
  }), element("span", "type"));
}

function fillKey(name, key) {
  const link = name.firstChild;
  put(link, key.key === "" ? "(the empty text)" : key.key);
  link.dataset.key = key.key;
  link.dataset.id = key.id;
  put(name.lastChild, key.type === "str" ? "" : key.type);
}

function checksText(key) {
  if (key.checks === undefined || key.checks === null) return "";
  return key.checks === 0 ? "no check" : plural(key.checks, "check");
}

function keyActions() {
  const act = (verb) => (event) => ask(verb, event.currentTarget.parentElement.dataset);
  return element("span", "actions", button("Withdraw", "small", act("withdraw")), button("Fail", "small", act("fail")));
}

function fillActions(actions, key) {
  actions.hidden = !frame.authorize;
  actions.dataset.id = key.id;
  actions.dataset.key = key.key;
  for (const verb of actions.children) attribute(verb, "aria-label", `${verb.textContent} the operations on ${key.key}`);
}

function drawKeys(list, keys, figure, empty) {
  each(list, keys.length ? keys : [null],
    () => element("li", "", keyName(), element("b", "figure"), keyActions(), element("span", "quiet")),
    (row, key) => {
      const [name, number, actions, none] = row.children;
      name.hidden = number.hidden = key === null;
      put(none, key === null ? empty : checksText(key));
      if (key === null) {
        actions.hidden = true;
        return;
      }
      fillKey(name, key);
      put(number, figure(key));
      fillActions(actions, key);
    });
}

function drawHot(one) {
  // If each key has one operation, there is no ranking.
  const ranked = one.hot.watchers.filter((key) => key.watchers > 1);
  drawKeys($("hot-watchers"), ranked, (key) => COUNT.format(key.watchers),
    one.keys ? `One on each of ${plural(one.keys, "key")}.` : "No operation waits.");
  drawKeys($("hot-total_wait"), one.hot.total_wait, (key) => duration(key.total_wait), "No operation waits.");
  // If one operation of a key has ended, its share means nothing.
  const shares = one.hot.expired.filter((key) => key.ended > 1);
  drawKeys($("hot-expired"), shares, (key) => `${Math.round((100 * key.expired) / key.ended)}% of ${COUNT.format(key.ended)}`,
    one.hot.expired.length ? "Each expired operation had a key of its own." : "None expired while somebody looked.");
}

function drawChecks(one) {
  const { checks } = one;
  $("checks-card").hidden = checks === null;
  if (checks === null) return;
  const many = `${checks.complete ? "" : "at least "}${plural(checks.total, "check")}`;
  put($("checks-text"), `In the ${duration(checks.seconds)} since somebody began to look, there were ${many}, ` +
    `${COUNT.format(checks.watched)} of them of keys on which operations waited.`);
  $("checks-unwatched").hidden = checks.unwatched.length === 0;
  each($("unwatched"), checks.unwatched, () => element("tr", "", ...Array.from({ length: 3 }, () => element("td"))),
    (row, key) => {
      const texts = [key.key === "" ? "(the empty text)" : key.key, COUNT.format(key.checks), `${duration(key.ago)} ago`];
      texts.forEach((text, index) => put(row.children[index], text));
      if (key.type !== "str") row.firstChild.append(element("span", "type", key.type));
    });
}

// Operations

async function search(id) {
  const number = (searching += 1);
  const [key, kind, rows] = [$("key").value, $("kind").value, $("rows").value];
  const query = new URLSearchParams({ room: room().name, rows });
  if (id) query.set("id", id);
  else if (key) query.set("key", key);
  else if (kind) query.set("kind", kind);
  put($("found"), "Searching");
  put($("said"), "");
  let answer;
  try {
    const response = await fetch(`state.json?${query}`);
    answer = await response.json();
    if (!response.ok) answer = { error: answer.detail };
  } catch {
    answer = { error: "the server does not answer" };
  }
  if (number !== searching) return; // a later search has begun
  searched = { ...answer, key, kind, id };
  $("reset").hidden = false;
  drawOperations(room());
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
$("reset").addEventListener("click", () => {
  searched = null;
  searching += 1;
  $("key").value = $("kind").value = "";
  $("reset").hidden = true;
  draw();
  $("key").focus();
});

function drawOperations(one) {
  const operations = searched === null ? one.longest : searched.operations ?? [];
  const keys = searched?.keys ?? [];
  $("matches").hidden = keys.length === 0;
  drawKeys($("matches"), keys, (key) => plural(key.watchers, "operation"), "");
  put($("found"), foundText(one, operations, keys));
  each($("operations"), operations, () => element("tr", "", ...Array.from({ length: 7 }, () => element("td"))),
    (row, operation) => {
      const [waited, kind, names, left, task, trace, number] = row.children;
      put(waited, duration(operation.waited));
      attribute(waited, "title", `since ${clockTime(operation.since)}`);
      put(kind, operation.kind);
      each(names, operation.keys, () => element("div", "", keyName(), element("span", "type")), (place, key) => {
        fillKey(place.firstChild, key);
        put(place.lastChild, [key.threshold === null ? "" : `from ${key.threshold}`, checksText(key)].filter(Boolean).join(", "));
      });
      if (operation.more_keys) names.append(element("div", "quiet", `and ${COUNT.format(operation.more_keys)} more`));
      put(left, leftText(operation));
      put(task, operation.awaited ? "awaits" : "none");
      put(trace, operation.trace_id ?? "–");
      put(number, String(operation.op_id));
    });
}

function foundText(one, operations, keys) {
  if (searched === null) {
    return operations.length < one.parked
      ? `The ${plural(operations.length, "operation")} that ${waits(operations.length)} longest, of ${COUNT.format(one.parked)}.`
      : one.parked ? "All operations, the longest waiting first." : "No operation waits.";
  }
  if (searched.error) return `The search failed: ${searched.error}.`;
  const partly = searched.complete ? "" : " The search stopped at its limit.";
  if (searched.keys) {
    if (!keys.length) return `No operation waits on a key that contains ${searched.key}.${partly}`;
    const found = searched.exact === false
      ? `No operation waits on exactly ${searched.key}. ${plural(keys.length, "key")} ${keys.length === 1 ? "contains" : "contain"} it`
      : `${plural(keys.length, "key")} found`;
    return `${found}; below, ${plural(operations.length, "operation")} on ${keys[0].key}.${partly}`;
  }
  return `The ${plural(operations.length, "operation")} ${searched.kind ? `of kind ${searched.kind} ` : ""}that ${waits(operations.length)} longest.${partly}`;
}

function drawFailures(one) {
  $("failures-card").hidden = one.failures.length === 0;
  const [shown, all] = [one.failures.length, one.totals.failed];
  put($("failures-sample"), shown < all ? `A sample: ${COUNT.format(shown)} of the ${COUNT.format(all)} failures since the process began.` : "");
  each($("failures"), one.failures, () => element("tr", "", ...Array.from({ length: 6 }, () => element("td"))),
    (row, failure) => {
      const time = new Date(failure.at * 1000).toLocaleTimeString("en-GB");
      const texts = [`${duration(failure.ago)} ago`, time, failure.kind, failure.key || "not parked yet", failure.error, failure.place || "–"];
      texts.forEach((text, index) => put(row.children[index], text));
    });
}

// Relays, workers, and timers

function facts(box, items) {
  each(box, items, () => element("div", "", element("dt"), element("dd")), (row, [name, value]) => {
    put(row.firstChild, name);
    put(row.lastChild, value);
  });
}

function drawRelays() {
  $("relays-card").hidden = frame.relays.length === 0;
  each($("relays"), frame.relays, () => element("div", "relay", element("p"), element("p", "quiet"), element("dl", "facts")),
    (box, relay) => {
      box.dataset.state = relay.connected ? "connected" : "lost";
      put(box.children[0], `${relay.purgatory}: ${relay.connected ? "connected" : "not connected"} through ${relay.transport}`);
      put(box.children[1], relay.last_loss === null ? "" : `Last loss, ${duration(relay.last_loss_ago)} ago: ${relay.last_loss}`);
      facts(box.lastChild, [
        ["ping", relay.lag === null ? "–" : duration(relay.lag)], ["other relays", COUNT.format(relay.peers)],
        ["losses", COUNT.format(relay.losses)], ["resyncs", COUNT.format(relay.resyncs)],
        ["keys sent", COUNT.format(relay.sent)], ["keys received", COUNT.format(relay.received)],
        ["keys to send", COUNT.format(relay.pending)], ["keys to read", COUNT.format(relay.stale)],
        ["reads", COUNT.format(relay.reads)], ["failed reads", COUNT.format(relay.failed_reads)],
      ]);
    });
}

function drawWorkers() {
  const workers = frame.workers ?? [];
  $("workers-card").hidden = workers.length === 0;
  each($("workers"), workers, () => element("li", "", element("span", "name"), element("span", "figure")), (row, worker) => {
    put(row.firstChild, worker.name);
    put(row.lastChild, `relay of ${worker.purgatory}, heard of ${duration(worker.ago)} ago`);
  });
}

function drawTimers() {
  const rows = frame.timers.flatMap((timer) => timer.levels.map((level, index) => [timer, level, index]));
  each($("timers"), rows, () => {
    const strip = element("div", "buckets");
    strip.setAttribute("role", "img");
    return element("div", "wheel", element("div", "", element("p", "name"), element("p", "quiet")), strip);
  }, (row, [timer, level, index]) => {
    const strip = row.lastChild;
    const cells = level.wheel_size <= 512 ? level.wheel_size : 0;
    while (strip.children.length > cells) strip.lastChild.remove();
    while (strip.children.length < cells) strip.append(element("span", "bucket", element("i")));
    const fullest = level.buckets.reduce((largest, bucket) => (bucket[2] > largest[2] ? bucket : largest), [0, 0, 0]);
    const rooms = frame.timers.length > 1 && index === 0 ? `${timer.rooms.join(", ")}: ` : "";
    put(row.querySelector(".name"), `${rooms}${duration(level.tick_ms / 1000)} a bucket, ${duration(level.interval_ms / 1000)} round`);
    const due = `${plural(level.tasks, "deadline")}, ${COUNT.format(fullest[2])} in the fullest bucket`;
    put(row.querySelector(".quiet"), level.tasks === 0 ? "empty" : due);
    const held = new Map(level.buckets.map(([slot, ahead, count]) => [slot, [ahead, count]]));
    [...strip.children].forEach((cell, slot) => {
      const [ahead, count] = held.get(slot) ?? [0, 0];
      cell.classList.toggle("hand", slot === level.slot);
      // A nonempty bucket shows at least a line.
      cell.firstChild.style.height = count ? `${Math.max(8, (100 * count) / fullest[2])}%` : "0";
      cell.title = count ? `${plural(count, "deadline")}, due in ${duration(ahead / 1000)}` : "empty";
    });
    attribute(strip, "aria-label", `Level ${index + 1} of the timer of ${timer.rooms.join(", ")}: ${level.tasks ? due : "no deadlines"}`);
  });
}

// Actions, if the server allows them

const dialog = $("action");
let asked = null;

function ask(verb, { id, key }) {
  asked = { verb, id, room: room().name };
  const word = verb === "withdraw" ? "Withdraw" : "Fail";
  put($("action-title"), `${word} the operations on one key?`);
  put($("action-text"), `Every operation of ${asked.room} that waits on ${key} ends now, and its task gets an error.`);
  put($("action-do"), word);
  $("reason").value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
}

dialog.addEventListener("close", async () => {
  if (dialog.returnValue !== "do" || asked === null) return;
  const { verb, id, room: name } = asked;
  asked = null;
  let said;
  try {
    const body = JSON.stringify({ room: name, id, reason: $("reason").value || `${verb} by an operator` });
    const response = await fetch(verb, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const answer = await response.json();
    const refused = response.status === 504 ? "No answer" : "Not done";
    said = response.ok ? `${plural(answer.ended, "operation")} ended.` : `${refused}: ${answer.detail}.`;
  } catch {
    said = "The server does not answer; the operations may have ended.";
  }
  searched = null;
  draw();
  put($("said"), said);
});

// Buttons

function paint(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = null;
try {
  theme = localStorage.getItem("theme");
} catch {
  // without storage, the choice lasts until the page is closed
}
paint(theme ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => theme === null && paint(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  paint(theme);
  try {
    localStorage.setItem("theme", theme);
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
