/* Lines of a job table, kept living from a cluster's frame. */

import { live } from "./live.js";
import { clock, DASH, duration, grouped, put } from "./text.js";

const MOVING_MS = 3000;

function progressText(job) {
  if (job.still_since_ms === null) return "moving";
  return duration(Math.max(MOVING_MS, live.now() - job.still_since_ms) / 1000);
}

/* jobs: {id: row} as in `cluster:<id>`. Answers whether a job is missing or new in the table. */
export function updateJobs(jobs) {
  const table = document.getElementById("jobs");
  const rows = table ? [...table.querySelectorAll("tr[data-job]")] : [];
  const cell = (row, name) => row.querySelector(`[data-cell=${name}]`);
  for (const row of rows) {
    const job = jobs[row.dataset.job];
    if (!job) continue;
    put(cell(row, "ranks"), `${grouped(job.reported)}/${grouped(job.ranks)}`);
    put(cell(row, "step"), job.step === null ? DASH : String(job.step));
    put(cell(row, "rate"), job.step_rate === null ? DASH : job.step_rate.toFixed(2));
    put(cell(row, "progress"), progressText(job));
    put(cell(row, "phase"), job.phase ?? DASH);
    if (job.still_since_ms !== null) cell(row, "progress").title = `${clock(new Date(job.still_since_ms))} UTC`;
  }
  const shown = new Set(rows.map((row) => row.dataset.job));
  return Object.keys(jobs).some((id) => !shown.has(id)) || rows.some((row) => !jobs[row.dataset.job]);
}
