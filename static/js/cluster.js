/* The cluster page: counts, map, jobs and attention, updated in place once a second. */

import { showFreshness } from "./frame.js";
import { updateJobs } from "./jobtable.js";
import { live } from "./live.js";
import { ClusterMap, sprite, STATES, WORDS } from "./map.js";
import { refresher } from "./refresh.js";
import { clock, grouped, put } from "./text.js";

const strip = document.getElementById("strip");
const clusterId = strip.dataset.cluster;
const said = document.getElementById("said");
const twin = document.getElementById("twin");
const twinButton = document.getElementById("twin-button");
const stale = document.getElementById("stale");
const map = new ClusterMap(document.getElementById("holder"));
const TWIN_ROWS_MAX = 500;
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
let version = null;
let loading = false;

/* --- places -------------------------------------------------------------------------------------------- */

async function loadPlaces(wanted) {
  if (loading) return;
  loading = true;
  try {
    const answer = await fetch(`/clusters/${clusterId}/places.json`);
    if (answer.ok) {
      const found = await answer.json();
      version = wanted ?? found.version;
      map.place(found.tiles);
      map.draw();
      legend();
    }
  } catch {
    /* asked again with the next frame */
  } finally {
    loading = false;
  }
}

/* --- what is drawn besides ----------------------------------------------------------------------------- */

function legend() {
  const box = document.getElementById("legend");
  box.replaceChildren(
    ...STATES.map((state) => {
      const item = document.createElement("span");
      item.append(sprite(state, 16), WORDS[state]);
      return item;
    }),
  );
  box.hidden = false;
}

function marks() {
  map.marks = [...document.querySelectorAll("#attention li")].map((item, place) => ({
    hosts: new Set(item.dataset.hosts.split(" ").filter(Boolean)),
    state: item.className.replace("on", "").trim(),
    number: place + 1,
  }));
}

function describe(cell) {
  const state = map.stateOf(cell) ?? "unknown";
  const where = cell.gpu === null ? cell.name : `${cell.name}, GPU ${cell.gpu}`;
  return `${where}: ${WORDS[state]}`;
}

function showTip(cell, x, y) {
  let tip = document.getElementById("tip");
  if (!tip) {
    tip = document.createElement("div");
    tip.id = "tip";
    tip.className = "tip";
    document.body.append(tip);
  }
  tip.hidden = !cell;
  if (!cell) return;
  tip.textContent = describe(cell);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(innerWidth - box.width - 8, x + 14))}px`;
  tip.style.top = `${y + 20 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}

function showTwin() {
  const bad = map.cells.filter((cell) => !["ok", "idle"].includes(map.stateOf(cell)));
  const rows = (bad.length ? bad : map.cells).slice(0, TWIN_ROWS_MAX);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Node", "GPU", "State"]) {
    head.append(Object.assign(document.createElement("th"), { textContent: name }));
  }
  const body = table.createTBody();
  for (const cell of rows) {
    const row = body.insertRow();
    const state = map.stateOf(cell) ?? "unknown";
    row.insertCell().textContent = cell.name;
    row.insertCell().textContent = cell.gpu === null ? "–" : cell.gpu;
    const pill = document.createElement("span");
    pill.className = `pill plain ${state}`;
    pill.append(Object.assign(document.createElement("i"), { className: "g" }), WORDS[state]);
    row.insertCell().append(pill);
  }
  const note = document.createElement("p");
  note.className = "xs t3";
  note.textContent = bad.length
    ? `${grouped(bad.length)} slots that are neither healthy nor idle; ${grouped(rows.length)} shown.`
    : `All ${grouped(map.cells.length)} slots are healthy or idle; ${grouped(rows.length)} shown.`;
  twin.replaceChildren(note, table);
}

function toggleTwin() {
  twin.hidden = !twin.hidden;
  map.holder.hidden = !twin.hidden;
  twinButton.setAttribute("aria-pressed", String(!twin.hidden));
  if (!twin.hidden) showTwin();
  else redraw();
}

/* --- live ---------------------------------------------------------------------------------------------- */

function showCounts({ counts, total }) {
  for (const item of strip.querySelectorAll("[data-state]")) {
    const count = counts[item.dataset.state] ?? 0;
    put(item.querySelector("b"), grouped(count));
    put(item.querySelector("em"), share(count, total));
  }
  put(document.getElementById("total"), `= ${grouped(total)}`);
}

/* As numbers.share on the server: rounded down, so that one missing never reads as 100. */
function share(part, whole) {
  if (whole <= 0) return "–";
  if (part === whole || part === 0) return `${part ? 100 : 0}\u202f%`;
  const percent = (100 * part) / whole;
  const digits = percent < 99 && percent >= 10 ? 0 : percent >= 1 ? 1 : 2;
  return `${(Math.floor(percent * 10 ** digits) / 10 ** digits).toFixed(digits)}\u202f%`;
}

function redraw() {
  map.layout();
  map.draw();
}

let spoken = "";
function speak({ counts, total }) {
  const text = `${grouped(total)} slots: ${STATES.map((s) => `${grouped(counts[s] ?? 0)} ${WORDS[s].toLowerCase()}`).join(", ")}`;
  if (text !== spoken && map.cursor < 0) said.textContent = text;
  spoken = text;
}

const refresh = refresher([".panel", ".jobsnow"], () => {
  marks();
  map.draw();
});

let newest = null;
live.subscribe(`cluster:${clusterId}`, {
  frame(state, change) {
    newest = state;
    if (state.slots_version !== version) loadPlaces(state.slots_version);
    if (change.full || change.keys.has("slots")) {
      map.slots = state.slots;
      map.draw();
      if (!twin.hidden) showTwin();
    }
    showCounts(state);
    speak(state);
    if (updateJobs(state.jobs)) refresh();
    put(document.getElementById("asof"), clock(new Date(live.now())));
  },
  stale(sinceMs) {
    stale.hidden = sinceMs === null;
    if (sinceMs === null) {
      if (newest) map.slots = newest.slots;
    } else {
      /* blind is never green: what is no longer told is unknown */
      stale.textContent = `Nothing new since ${clock(new Date(sinceMs))} UTC: every slot is unknown until it comes.`;
      map.slots = new Uint8Array(newest?.slots.length ?? 0);
      const total = newest?.total ?? 0;
      showCounts({ counts: { unknown: total }, total });
    }
    showFreshness(sinceMs);
    map.draw();
  },
});

let known = null;
live.subscribe(`incidents:${clusterId}`, {
  frame(state) {
    const marksNow = JSON.stringify(Object.entries(state.incidents ?? {}).map(([id, i]) => [id, i.state, i.summary]));
    if (known !== null && known !== marksNow) refresh();
    known = marksNow;
  },
});

/* --- hands --------------------------------------------------------------------------------------------- */

map.canvas.addEventListener("pointermove", (event) => {
  const cell = map.cells[map.at(event.offsetX, event.offsetY)];
  showTip(cell, event.clientX, event.clientY);
});
map.canvas.addEventListener("pointerleave", () => showTip(null));
map.canvas.addEventListener("click", (event) => {
  const cell = map.cells[map.at(event.offsetX, event.offsetY)];
  if (cell) location.assign(`/search?q=${encodeURIComponent(cell.name)}`);
});
map.canvas.addEventListener("keydown", (event) => {
  const way = KEYS[event.key];
  if (way) {
    event.preventDefault();
    map.cursor = map.step(...way);
    map.draw();
    const cell = map.cells[map.cursor];
    if (cell) said.textContent = describe(cell);
  } else if (event.key === "Enter" && map.cells[map.cursor]) {
    location.assign(`/search?q=${encodeURIComponent(map.cells[map.cursor].name)}`);
  }
});
strip.addEventListener("click", (event) => {
  const item = event.target.closest("[data-state]");
  if (!item) return;
  event.preventDefault();
  map.only = map.only === item.dataset.state ? null : item.dataset.state;
  for (const each of strip.querySelectorAll("[data-state]")) {
    each.setAttribute("aria-pressed", String(each.dataset.state === map.only));
  }
  map.draw();
});
document.addEventListener("pointerover", (event) => {
  const items = [...document.querySelectorAll("#attention li")];
  const lit = items.indexOf(event.target.closest?.("#attention li"));
  if (lit !== map.lit) {
    map.lit = lit;
    map.draw();
  }
});
twinButton.hidden = false;
twinButton.addEventListener("click", toggleTwin);
document.addEventListener("keydown", (event) => {
  if (event.key === "t" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) toggleTwin();
});
document.addEventListener("theme:changed", () => {
  map.draw();
  legend();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  map.draw();
  legend();
});
addEventListener("resize", redraw);
marks();
loadPlaces(null);
