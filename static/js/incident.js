/* An open incident page: burn and ages tick, and what changes is taken from the server's own HTML. */

import { localTimes, toast } from "./frame.js";
import { live } from "./live.js";
import { refresher, swapPart } from "./refresh.js";
import { grouped } from "./text.js";

const CHECK_EVERY_MS = 10000;
const id = document.querySelector("[data-incident]").dataset.incident;
const burn = () => document.getElementById("burn");

/* Faults of parts have no clock of lost time; what is over, or costs an unknown number of GPUs, does not tick. */
const isLive = () => "live" in document.querySelector("[data-incident]").dataset;

function tickBurn() {
  if (!burn() || !isLive()) return;
  const { count, since } = burn().dataset;
  if (count === "") return;
  const hours = (Number(count) * Math.max(0, live.now() - Date.parse(since))) / 3.6e6;
  burn().textContent = grouped(hours, hours >= 10 ? 0 : 2);
}

/* Open menus and half-written notes stay: only what tells of the incident is swapped. */
const parts = [".verdict .head", "#sentence", ".signals", ".facts", ".act > h2", "#timeline", ".cards"];
const refresh = refresher(parts, (fresh) => {
  const verdict = document.querySelector(".verdict");
  verdict.className = fresh.querySelector(".verdict").className;
  verdict.toggleAttribute("data-live", fresh.querySelector(".verdict").hasAttribute("data-live"));
  const acts = document.getElementById("acts");
  if (!acts.querySelector("details[open]")) swapPart(acts, fresh.getElementById("acts"));
  document.title = fresh.title;
  tickBurn();
});

/* What the server drew is compared with the first frame, so a change in between is not missed. */
let drawn = document.getElementById("sentence").textContent;
let seen = null;
live.subscribe(`incident:${id}`, {
  frame(state) {
    const marks = JSON.stringify([state.state, state.summary, Object.keys(state.changes ?? {})]);
    const reworded = state.summary !== drawn;
    if (reworded && seen !== null) toast("The verdict changed");
    if (reworded || (seen !== null && marks !== seen)) refresh();
    drawn = state.summary;
    seen = marks;
  },
});

document.addEventListener("htmx:after:swap", () => localTimes());
setInterval(tickBurn, 1000);
setInterval(() => {
  if (isLive() && document.visibilityState === "visible") refresh();
}, CHECK_EVERY_MS);
tickBurn();
