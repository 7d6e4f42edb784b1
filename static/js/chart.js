/* Draws a figure that the server made, in the colours of the theme, and shows its table twin. */

import { token } from "./text.js";

const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false };

function fade(color, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

/* Each trace says by `meta` what it is; here it gets its looks. */
function dressed(trace) {
  const main = token("cat-1");
  const looks = {
    edge: { line: { width: 0 }, hoverinfo: "skip" },
    band: { line: { width: 0 }, fillcolor: fade(main, 0.2), hovertemplate: "p99 %{y:.3f} s<extra></extra>" },
    median: { line: { width: 1.75, color: main }, hovertemplate: "p50 %{y:.3f} s<extra></extra>" },
    outlier: {
      line: { width: 2, color: token("degraded-fill") },
      hovertemplate: `${String(trace.name).replace(/[<>&]/g, "")} %{y:.3f} s<extra></extra>`,
    },
  };
  return { ...trace, ...(looks[trace.meta] ?? looks.median) };
}

function dressedLayout(layout) {
  const font = { family: token("font"), size: 11, color: token("text-3") };
  const loud = { ...font, color: token("text"), weight: 600 };
  return {
    ...layout,
    font,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 38, r: 8, t: 20, b: 24 },
    height: 240,
    showlegend: false,
    hovermode: "x unified",
    dragmode: "zoom",
    uirevision: "steps",
    hoverlabel: { bgcolor: token("raised"), bordercolor: token("line-2"), font: { ...font, size: 12, color: token("text") } },
    xaxis: { showgrid: false, zeroline: false, showline: false, ticks: "", nticks: 6, tickformat: "%H:%M", type: "date" },
    yaxis: { gridcolor: token("line"), zerolinecolor: token("line-2"), nticks: 4, automargin: true, ticks: "", rangemode: "normal" },
    annotations: (layout.annotations ?? []).map((note) => ({
      ...note,
      font: { ...loud, color: token(note.name === "stopped" ? "failed" : "degraded") },
    })),
    shapes: (layout.shapes ?? []).map((shape) => ({ ...shape, line: { color: token("failed"), width: 1, dash: "2px,3px" } })),
  };
}

function draw(box) {
  const figure = JSON.parse(document.getElementById(box.dataset.figure).textContent);
  window.Plotly.react(box, figure.data.map(dressed), dressedLayout(figure.layout), CONFIG);
}

function twin(button) {
  const name = button.dataset.twin;
  const [plot, table] = [document.getElementById(`${name}-plot`), document.getElementById(`${name}-twin`)];
  const showTable = table.hidden;
  table.hidden = !showTable;
  plot.hidden = showTable;
  button.setAttribute("aria-pressed", String(showTable));
}

const boxes = [...document.querySelectorAll(".plot[data-figure]")];
/* Without this script the table stands; with it the picture does. */
for (const box of boxes) document.getElementById(box.id.replace("-plot", "-twin")).hidden = true;
for (const button of document.querySelectorAll("[data-twin]")) button.addEventListener("click", () => twin(button));
const drawAll = () => boxes.forEach(draw);
drawAll();
document.addEventListener("theme:changed", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
