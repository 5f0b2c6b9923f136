// What pages do in the browser: times in the viewer's zone, keys, copying, and the sign that a page is stale.
"use strict";

const AGES = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const STALE_MS = 8000;

function age(seconds) {
  const distance = Math.abs(seconds);
  const [unit, size] = AGES.find(([, least]) => distance >= least) || AGES[3];
  const text = `${Math.floor(distance / size)} ${unit}`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

// Every time shows its distance from now; the exact time in the viewer's zone is on hover.
function writeTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const text = age((now - at) / 1000);
    if (element.textContent !== text) element.textContent = text;
    const exact = at.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "long"});
    if (element.title !== exact) element.title = exact;
  }
}

// The row that was chosen by keys stays chosen when the rows change.
let chosen = "";
function markChosen() {
  for (const row of document.querySelectorAll("tr.chosen")) if (row.id !== chosen) row.classList.remove("chosen");
  if (chosen) document.getElementById(chosen)?.classList.add("chosen");
}

// A chart is drawn from the numbers in its attribute, and again when they have changed. Lines differ by their dashes too.
const LINES = {
  throughput: [["enqueued", "Made", "--ready", []], ["claimed", "Claimed", "--active", [8, 4]], ["ended", "Ended", "--good", [2, 3]]],
  failures: [["failures", "Failed runs", "--bad", []]],
  wait: [["wait_p50_s", "Wait p50", "--ready", []], ["wait_p95_s", "Wait p95", "--waiting", [6, 3]]],
  run: [["run_p50_s", "Run p50", "--ready", []], ["run_p95_s", "Run p95", "--waiting", [6, 3]]],
};
const STEPS = [...Array(13).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** (power - 4)));
const HIGH = 150;
const drawn = new WeakMap();
function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, least]) => value >= least) || ["ms", 0.001];
  return `${Number((value / size).toPrecision(3))} ${unit}`;
}

function drawChart(place, numbers, lines) {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isTime = lines[0][0].endsWith("_s");
  const isBars = lines.length === 1;
  const axis = {stroke: color("--note"), grid: {stroke: color("--line"), width: 1}, ticks: {show: false}, font: "12px system-ui, sans-serif"};
  const write = isTime ? seconds : (value) => (value === null ? "–" : value.toLocaleString());
  const upright = {...axis, size: isTime ? 62 : 52, incrs: isTime ? STEPS : STEPS.filter((step) => step >= 1), values: (_, marks) => marks.map(write), space: 24};
  const series = lines.map(([, label, name, dash]) => ({
    label, stroke: color(name), dash, width: 2, points: {show: false}, spanGaps: true, value: (_, value) => write(value),
    ...(isBars ? {fill: color(name), paths: uPlot.paths.bars({size: [0.7, 20]}), dash: []} : {}),
  }));
  const width = () => Math.max(100, place.clientWidth);
  const plot = new uPlot({
    width: width(), height: HIGH, cursor: {points: {size: 6}, drag: {x: false, y: false}}, legend: {live: true},
    scales: {y: {range: (_, low, high) => [0, Math.max(isTime ? 0.001 : 1, high || 0) * 1.05]}},
    axes: [{...axis, size: 26, space: 60, values: (_, marks) => marks.map((at) => new Date(at * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}))}, upright],
    series: [{value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}) : "")}, ...series],
  }, values(numbers, lines), place);
  new ResizeObserver(() => plot.setSize({width: width(), height: HIGH})).observe(place);
  return plot;
}

// The last minute is not over: beside full ones it would look like a fall.
function values(numbers, lines) {
  const full = numbers.claimed.slice(0, -1).filter((count) => count > 0).length;
  const end = full > 2 ? -1 : undefined;
  return [numbers.times.slice(1, end), ...lines.map(([name]) => numbers[name].slice(1, end))];
}

function drawCharts() {
  const given = document.getElementById("numbers")?.dataset.numbers;
  if (!given) return;
  const numbers = JSON.parse(given);
  for (const place of document.querySelectorAll(".chart[data-chart]")) {
    const lines = LINES[place.dataset.chart];
    const known = drawn.get(place);
    if (!known) drawn.set(place, {given, plot: drawChart(place, numbers, lines)});
    else if (known.given !== given) {
      known.plot.setData(values(numbers, lines));
      known.given = given;
    }
  }
}

function refresh() {
  drawCharts();
  writeTimes();
  markChosen();
}

let heard = Date.now();
function hear() {
  heard = Date.now();
  document.getElementById("stale").hidden = true;
}

function watchStream() {
  const live = document.getElementById("live");
  if (!live?.hasAttribute("hx-sse:connect")) return;
  for (const name of ["htmx:sse:after:connection", "htmx:sse:after:message", "beat"]) live.addEventListener(name, hear);
  live.addEventListener("htmx:sse:error", (event) => {
    if (event.detail?.status === 401) location.reload();
  });
  document.addEventListener("visibilitychange", () => { heard = Date.now(); });
  setInterval(() => {
    if (!document.hidden && Date.now() - heard > STALE_MS) document.getElementById("stale").hidden = false;
  }, 1000);
}

// Keys. A key pressed while somebody types belongs to the text.
function rows() { return [...document.querySelectorAll("tr[data-open]")]; }

function choose(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.id === chosen);
  const row = all[Math.max(0, Math.min(all.length - 1, at + step))];
  chosen = row.id;
  markChosen();
  row.querySelector("a")?.focus();
}

let prefix = "";
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select") || document.querySelector("dialog[open]")) return;
  const key = event.key;
  if (prefix === "g") {
    prefix = "";
    const page = document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`);
    if (page) { event.preventDefault(); page.click(); }
    return;
  }
  const actions = {
    g: () => { prefix = "g"; },
    n: () => choose(1),
    p: () => choose(-1),
    a: () => document.querySelector("[data-first-action]")?.focus(),
    "/": () => document.querySelector("input[type=search], .search input, .search select")?.focus(),
    "?": () => document.getElementById("keys").showModal(),
  };
  if (actions[key]) { event.preventDefault(); actions[key](); }
}

function onClick(event) {
  const opener = event.target.closest("[data-dialog]");
  if (opener) document.getElementById(opener.dataset.dialog).showModal();
  const menu = event.target.closest(".menu-button");
  if (menu) menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true"));
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard?.writeText(copy.parentElement.querySelector("code").textContent).then(() => { copy.textContent = "Copied"; });
  }
}

// A text that must be JSON is checked before it is sent: what was typed is not lost.
document.addEventListener("input", (event) => {
  if (!event.target.matches?.("textarea[data-json]")) return;
  let trouble = "";
  try { JSON.parse(event.target.value); } catch (error) { trouble = `This is no JSON: ${error.message}`; }
  event.target.setCustomValidity(trouble);
});

document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
document.addEventListener("htmx:after:swap", refresh);
document.addEventListener("DOMContentLoaded", () => { refresh(); watchStream(); });
setInterval(writeTimes, 1000);
