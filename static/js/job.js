/* An open job page: ranks, figures and open calls live from `job:<id>`; verdict and groups from the server. */

import { live } from "./live.js";
import { refresher } from "./refresh.js";
import { clock, DASH, duration, grouped, put } from "./text.js";

const jobId = document.querySelector("[data-job]").dataset.job;
const clusterId = document.getElementById("cluster-id").dataset.id;
/* Bytes of `states` (clusterwatch/live/README.md), with the badge each is drawn as. */
const STATES = [
  ["unknown", "Unknown"],
  ["ok", "Moves"],
  ["idle", "Waits"],
  ["degraded", "Behind"],
  ["degraded", "Stands still"],
  ["idle", "Ended"],
  ["failed", "Failed"],
  ["degraded", "Stopped"],
];
const refresh = refresher([".verdict > div", "#open-calls", "#shapes"], (fresh) => {
  document.querySelector(".verdict").className = fresh.querySelector(".verdict").className;
  document.title = fresh.title;
});

function age(sinceMs) {
  return duration((live.now() - sinceMs) / 1000);
}

function showFacts(state) {
  put(document.getElementById("fact-step"), state.step === null ? DASH : String(state.step));
  put(document.getElementById("fact-rate"), state.step_rate === null ? DASH : state.step_rate.toFixed(2));
  put(document.getElementById("fact-progress"), state.still_since_ms === null ? "now" : age(state.still_since_ms));
  put(document.getElementById("fact-phase"), state.phase ?? "phase not reported");
  put(document.getElementById("fact-ranks"), grouped(state.coverage.reported));
}

function badge(state, place, named) {
  const [look, word] = STATES[state.states[place]] ?? STATES[0];
  return named && look !== "failed" ? ["failed", word === "Stopped" ? word : "Named"] : [look, word];
}

function progressOf(state, place) {
  const since = state.still_since_s[place];
  if (since === null || since === undefined) return DASH;
  return since === 0 ? "now" : age(since * 1000);
}

function pill(cell, look, word) {
  const old = cell.querySelector(".pill");
  if (old && old.classList.contains(look) && old.textContent === word) return;
  const made = document.createElement("span");
  made.className = `pill plain ${look}`;
  made.append(Object.assign(document.createElement("i"), { className: "g" }), word);
  cell.replaceChildren(made);
}

function showRanks(state) {
  const rows = new Map([...document.querySelectorAll("#ranks tr[data-rank]")].map((row) => [row.dataset.rank, row]));
  const chips = new Map([...document.querySelectorAll("#hosts [data-rank]")].map((chip) => [chip.dataset.rank, chip]));
  state.rank.forEach((rank, place) => {
    const [row, chip] = [rows.get(String(rank)), chips.get(String(rank))];
    if (!row && !chip) return;
    const named = (row ?? chip).matches(".culprit, .named");
    const [look, word] = badge(state, place, named);
    if (chip) {
      chip.className = `${look}${named ? " named" : ""}`;
      chip.title = `rank ${rank}: ${word}`;
    }
    if (!row) return;
    const cell = (name) => row.querySelector(`[data-cell=${name}]`);
    pill(cell("state"), look, word);
    const behind = state.steps_behind[place];
    put(cell("step"), behind === null || state.step === null ? DASH : String(state.step - behind));
    put(cell("phase"), state.phase_names[state.phases[place]] ?? DASH);
    if (state.states[place] !== 5 && state.states[place] !== 6) put(cell("progress"), progressOf(state, place));
  });
}

const several = document.querySelector("#ranks thead")?.textContent.includes("World") ?? false;
let calls = null;
let newest = null;
live.subscribe(`job:${jobId}`, {
  frame(state) {
    newest = state;
    showFacts(state);
    if (!several) showRanks(state);
    const now = JSON.stringify(Object.entries(state.open_calls ?? {}).map(([id, call]) => [id, call.sequence, call.joined]));
    if (calls !== null && calls !== now) refresh();
    calls = now;
  },
});
setInterval(() => {
  if (newest) showFacts(newest);
}, 1000);

let known = null;
if (clusterId) {
  live.subscribe(`incidents:${clusterId}`, {
    frame(state) {
      const mine = Object.entries(state.incidents ?? {}).filter(([, incident]) => String(incident.job_id) === jobId);
      const now = JSON.stringify(mine.map(([id, incident]) => [id, incident.state, incident.summary]));
      if (known !== null && known !== now) refresh();
      known = now;
    },
  });
}
document.querySelector("[data-live-stale]")?.setAttribute("title", `as of ${clock(new Date())} UTC`);
