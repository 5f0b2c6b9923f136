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

// A chart is drawn from the numbers in its attribute, and again when they have changed.
const LINES = [["enqueued", "Made", "--ready", []], ["claimed", "Claimed", "--active", [8, 4]], ["ended", "Ended", "--good", [2, 3]]];
const STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const drawn = new WeakMap();
function drawCharts() {
  for (const place of document.querySelectorAll(".chart[data-chart]")) {
    const given = place.dataset.chart;
    let known = drawn.get(place);
    if (known?.given === given) continue;
    const numbers = JSON.parse(given);
    const values = [numbers.times, ...LINES.map(([name]) => numbers[name])];
    if (known) {
      known.plot.setData(values);
    } else {
      const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const axis = {stroke: color("--note"), grid: {stroke: color("--line"), width: 1}};
      const series = LINES.map(([, label, name, dash]) => ({label, stroke: color(name), dash, width: 2, points: {show: false}}));
      const size = {width: Math.max(100, place.clientWidth), height: 180};
      known = {plot: new uPlot({...size, scales: {y: {range: (_, low, high) => [0, Math.max(1, high)]}}, axes: [axis, {...axis, incrs: STEPS}], series: [{}, ...series]}, values, place)};
      drawn.set(place, known);
      new ResizeObserver(() => known.plot.setSize({width: Math.max(100, place.clientWidth), height: 180})).observe(place);
    }
    known.given = given;
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
