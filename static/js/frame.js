/* The frame of every page: ages that tick, copy buttons, keys, theme, and the count of live incidents. */

import { live } from "./live.js";
import { clock, duration, grouped } from "./text.js";

const root = document.documentElement;

function cookie(name, value) {
  document.cookie = `${name}=${value}; path=/; max-age=${value ? 31536000 : 0}; samesite=lax`;
}

/* --- ages and times ------------------------------------------------------------------------------------ */

function tick() {
  const now = live.now();
  for (const element of document.querySelectorAll("time[data-age]")) {
    const text = duration((now - Date.parse(element.dateTime)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function localTimes(scope = document) {
  for (const element of scope.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!Number.isNaN(at.getTime())) element.title = `${at.toLocaleString()} here, ${clock(at)} UTC`;
  }
}

/* --- small acts ---------------------------------------------------------------------------------------- */

export function toast(text) {
  const line = document.createElement("div");
  line.className = "toast";
  line.textContent = text;
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), 2600);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    toast("Copied");
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    toast("Selected: press Ctrl C");
  }
}

function setTheme(value) {
  if (value === "system") delete root.dataset.theme;
  else root.dataset.theme = value;
  cookie("theme", value === "system" ? "" : value);
  const next = { light: "dark", dark: "system", system: "light" }[value];
  const button = document.querySelector("#preferences [name=theme]");
  button.value = next;
  button.setAttribute("aria-label", `Change theme, now ${value}`);
  button.title = `Theme: ${value}`;
  document.dispatchEvent(new CustomEvent("theme:changed"));
  toast(`Theme: ${value}`);
}

function setDensity(value) {
  if (value === "comfortable") root.dataset.density = value;
  else delete root.dataset.density;
  cookie("density", value);
  document.querySelector("#preferences [name=density]").value = value === "compact" ? "comfortable" : "compact";
}

function toggleRail() {
  const wide = root.dataset.rail !== "wide";
  if (wide) root.dataset.rail = "wide";
  else delete root.dataset.rail;
  cookie("rail", wide ? "wide" : "");
  dispatchEvent(new Event("resize"));
}

/* --- keys ---------------------------------------------------------------------------------------------- */

const GO = { c: "/", j: "/jobs", i: "/incidents" };
let afterG = 0;

function walk(step) {
  const rows = [...document.querySelectorAll("table.walk tbody tr[data-href]")].filter((row) => row.offsetParent);
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.classList.contains("here"));
  rows[at]?.classList.remove("here");
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const went = GO[event.key];
  if (went && Date.now() - afterG < 1500) location.assign(went);
  else if (event.key === "g") afterG = Date.now();
  else if (event.key === "/") document.querySelector(".search input")?.focus();
  else if (event.key === "?") document.getElementById("help").showModal();
  else if (event.key === "[") toggleRail();
  else if (event.key === "j") walk(1);
  else if (event.key === "k") walk(-1);
  else if (event.key === "Enter" && event.target === document.body) {
    const here = document.querySelector("tr.here");
    if (here) location.assign(here.dataset.href);
  } else return;
  if (event.key !== "Enter" && event.key !== "g") event.preventDefault();
}

/* --- live incidents and coverage ----------------------------------------------------------------------- */

const STATE_OF = { critical: "failed", warning: "degraded", unknown: "unknown", info: "ok" };
const BADNESS = ["ok", "unknown", "degraded", "failed"];

function worstOf(incidents) {
  return Object.values(incidents)
    .map((incident) => STATE_OF[incident.severity] ?? "unknown")
    .reduce((worst, state) => (BADNESS.indexOf(state) > BADNESS.indexOf(worst) ? state : worst), "ok");
}

function showIncidents(state) {
  const incidents = state.incidents ?? {};
  const count = Object.keys(incidents).length;
  const worst = worstOf(incidents);
  const link = document.getElementById("incident-count");
  if (!link) return;
  link.querySelector("i").className = `g st ${worst}`;
  link.querySelector("span").textContent = grouped(count);
  link.title = `${count} live incident${count === 1 ? "" : "s"}`;
  const icon = document.getElementById("tab-icon");
  icon.href = icon.href.replace(/tab-\w+\.svg/, `tab-${worst}.svg`);
}

function showCoverage(state) {
  const { expected, reported } = state.coverage;
  const pill = document.getElementById("coverage");
  if (!pill) return;
  pill.title = `${grouped(reported)} of ${grouped(expected)} nodes report`;
  const width = 34;
  const part = expected > 0 ? (width * reported) / expected : 0;
  pill.querySelector(".part").setAttribute("width", reported < expected ? Math.min(part, width - 4) : part);
  const percent = expected > 0 ? Math.floor((1000 * reported) / expected) / 10 : null;
  document.getElementById("coverage-word").textContent =
    percent === null ? "– reporting" : `${reported === expected ? "100" : percent}\u202f% reporting`;
}

export function showFreshness(sinceMs, reason = "nothing new arrives") {
  const box = document.getElementById("live");
  if (!box) return;
  box.classList.toggle("paused", sinceMs !== null);
  document.getElementById("live-word").textContent = sinceMs === null ? "Live" : "Stale";
  box.title = sinceMs === null ? "live data arrives each second" : `${reason} since ${clock(new Date(sinceMs))} UTC`;
}

const clusterId = document.getElementById("cluster-id")?.dataset.id;
if (clusterId && document.getElementById("live")) {
  live.subscribe(`incidents:${clusterId}`, { frame: showIncidents });
  live.subscribe(`cluster:${clusterId}`, { frame: showCoverage, stale: (sinceMs) => showFreshness(sinceMs) });
}

for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  if (event.target.closest(".railtoggle")) toggleRail();
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button, summary") && getSelection().isCollapsed) location.assign(row.dataset.href);
});
document.getElementById("preferences")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const { name, value } = event.submitter;
  if (name === "theme") setTheme(value);
  else setDensity(value);
});
document.addEventListener("keydown", key);
document.addEventListener("live:signed-out", () => showFreshness(Date.now(), "signed out"));
localTimes();
setInterval(tick, 1000);
