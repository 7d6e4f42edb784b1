/* The cluster on a canvas: one cell a slot, a row a node, a tile eight nodes; six states by colour and ink. */

import { token } from "./text.js";

/* Bytes of a cluster frame (clusterwatch/live/README.md). */
export const STATE_OF = ["unknown", "ok", "idle", "degraded", "failed", "drained"];
export const STATES = ["ok", "degraded", "failed", "idle", "drained", "unknown"];
export const WORDS = {
  ok: "Healthy",
  degraded: "Degraded",
  failed: "Failed",
  idle: "Idle",
  drained: "Drained",
  unknown: "Unknown",
};
const GONE = 255;
const SIDE = 8;
const CARDS_MAX = 64;
const CARD = { width: 168, height: 36, gap: 8 };
const TILE_GAP = 8;
const LABEL = 16;
/* Room at the right for the number of a mark. */
const EDGE = 10;
const LEFT = 3;
const CELL_MIN = 3;
const CELL_MAX = 16;

/* One drawing per state, in device pixels; inks are patterns, so that grey print still tells them apart. */
export function sprite(state, side) {
  const canvas = document.createElement("canvas");
  canvas.width = side;
  canvas.height = side;
  const ink = canvas.getContext("2d");
  ink.fillStyle = token(`${state}-fill`);
  if (state === "ok" || state === "failed") ink.fillRect(0, 0, side, side);
  else if (state === "degraded") {
    ink.fillRect(0, 0, side, side);
    ink.fillStyle = token("map");
    ink.fillRect(Math.ceil(side / 2), Math.ceil(side / 2), side, side);
  } else if (state === "idle") {
    const line = Math.max(1, Math.round(side / 10));
    ink.fillRect(0, 0, side, line);
    ink.fillRect(0, 0, line, side);
    ink.fillRect(side - line, 0, line, side);
    ink.fillRect(0, side - line, side, line);
  } else if (state === "drained") {
    const step = Math.max(4, Math.round(side / 3));
    for (let y = 0; y < side; y += 1) {
      for (let x = 0; x < side; x += 1) if ((x + y) % step < step / 2) ink.fillRect(x, y, 1, 1);
    }
  } else {
    const dot = Math.max(2, Math.round(side * 0.44));
    const at = Math.round((side - dot) / 2);
    ink.fillRect(at, at, dot, dot);
  }
  return canvas;
}

export class ClusterMap {
  constructor(holder) {
    this.holder = holder;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Cluster map: arrow keys walk, t opens the table");
    this.canvas.setAttribute("aria-describedby", "said");
    holder.replaceChildren(this.canvas);
    this.tiles = [];
    this.cells = [];
    this.slots = new Uint8Array();
    this.marks = [];
    this.cursor = -1;
    this.lit = -1;
    this.only = null;
  }

  /* tiles: [[label, [[node id, name, [slot, ...]], ...]], ...] as /clusters/<id>/places.json gives them. */
  place(tiles) {
    this.tiles = tiles;
    const nodes = tiles.flatMap(([, rows]) => rows);
    this.asCards = nodes.length <= CARDS_MAX && nodes.every(([, , slots]) => slots.length === 1);
    this.layout();
  }

  layout() {
    const width = Math.max(240, this.holder.clientWidth) - EDGE;
    this.cells = [];
    if (this.asCards) this.layoutCards(width);
    else this.layoutTiles(width);
  }

  layoutCards(width) {
    const across = Math.max(1, Math.floor((width - LEFT + CARD.gap) / (CARD.width + CARD.gap)));
    const each = Math.min(260, Math.floor((width - LEFT + CARD.gap) / across) - CARD.gap);
    const nodes = this.tiles.flatMap(([, rows]) => rows);
    nodes.forEach(([node, name, [slot]], place) => {
      const x = LEFT + (place % across) * (each + CARD.gap);
      const y = Math.floor(place / across) * (CARD.height + CARD.gap) + 8;
      this.cells.push({ slot, node, name, gpu: null, x, y, width: each, height: CARD.height });
    });
    this.size(width, Math.ceil(nodes.length / across) * (CARD.height + CARD.gap) + 8);
  }

  /* Few lines of tiles, each line as full as the last; more lines only where cells grow by a quarter. */
  arrange(width) {
    const count = Math.max(1, this.tiles.length);
    const room = Math.max(260, innerHeight - 430);
    let best = null;
    for (let lines = 1; lines <= count; lines += 1) {
      const across = Math.ceil(count / lines);
      const wide = Math.floor(((width + TILE_GAP) / across - TILE_GAP) / SIDE);
      const high = Math.floor((room / lines - TILE_GAP - LABEL) / SIDE);
      const cell = Math.min(CELL_MAX, wide, Math.max(high, CELL_MIN));
      if (cell < CELL_MIN) continue;
      if (best === null || cell >= 1.25 * best.cell) best = { cell, across, lines };
      if (high < CELL_MIN) break;
    }
    return best ?? { cell: CELL_MIN, across: 1, lines: count };
  }

  layoutTiles(width) {
    const { cell, across, lines } = this.arrange(width - LEFT);
    this.cell = cell;
    this.labels = [];
    this.tiles.forEach(([label, rows], place) => {
      const left = LEFT + (place % across) * (SIDE * cell + TILE_GAP);
      const top = Math.floor(place / across) * (SIDE * cell + TILE_GAP + LABEL) + LABEL;
      this.labels.push({ label, x: left, y: top - 5 });
      rows.forEach(([node, name, slots], row) => {
        slots.forEach((slot, column) => {
          const gpu = slots.length > 1 ? column : null;
          const [x, y] = [left + column * cell, top + row * cell];
          this.cells.push({ slot, node, name, gpu, x, y, width: cell, height: cell });
        });
      });
    });
    this.size(width, lines * (SIDE * cell + TILE_GAP + LABEL) + 4);
  }

  size(width, height) {
    this.scale = devicePixelRatio || 1;
    this.canvas.width = Math.round((width + EDGE) * this.scale);
    this.canvas.height = Math.round(height * this.scale);
    this.canvas.style.width = `${width + EDGE}px`;
    this.canvas.style.height = `${height}px`;
  }

  stateOf(cell) {
    const byte = this.slots[cell.slot];
    return byte === GONE ? null : (STATE_OF[byte] ?? "unknown");
  }

  draw() {
    const ink = this.canvas.getContext("2d");
    ink.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.asCards) this.drawCards(ink);
    else this.drawTiles(ink);
    this.drawMarks(ink);
    this.drawCursor(ink);
  }

  drawCards(ink) {
    const side = 16;
    for (const cell of this.cells) {
      const state = this.stateOf(cell);
      if (state === null) continue;
      ink.globalAlpha = this.only && this.only !== state ? 0.25 : 1;
      ink.fillStyle = token(`${state}-bg`);
      ink.beginPath();
      ink.roundRect(cell.x, cell.y, cell.width, cell.height, 6);
      ink.fill();
      ink.drawImage(sprite(state, side * this.scale), cell.x + 10, cell.y + 10, side, side);
      ink.fillStyle = token("text");
      ink.font = `600 12px ${token("font")}`;
      ink.textBaseline = "middle";
      ink.fillText(cell.name, cell.x + 34, cell.y + cell.height / 2 + 1, cell.width - 44);
    }
    ink.globalAlpha = 1;
  }

  drawTiles(ink) {
    const sprites = Object.fromEntries(STATES.map((state) => [state, sprite(state, Math.round((this.cell - 1) * this.scale))]));
    const inner = this.cell - 1;
    ink.font = `500 11px ${token("font")}`;
    ink.fillStyle = token("text-3");
    ink.textBaseline = "alphabetic";
    if (SIDE * this.cell >= 40) {
      for (const { label, x, y } of this.labels) ink.fillText(label, x, y, SIDE * this.cell);
    }
    const failed = [];
    for (const cell of this.cells) {
      const state = this.stateOf(cell);
      if (state === null) continue;
      ink.globalAlpha = this.only && this.only !== state ? 0.22 : 1;
      ink.drawImage(sprites[state], cell.x, cell.y, inner, inner);
      if (state === "failed") failed.push(cell);
    }
    ink.globalAlpha = 1;
    /* failed is never left to a hue: a ring in the text's colour, then the cell again on top */
    ink.fillStyle = token("text");
    for (const cell of failed) ink.fillRect(cell.x - 1.5, cell.y - 1.5, inner + 3, inner + 3);
    for (const cell of failed) ink.drawImage(sprites.failed, cell.x, cell.y, inner, inner);
  }

  /* marks: [{hosts: Set, state, number}]; a ring around each host's row and the number of its line. */
  drawMarks(ink) {
    this.marks.forEach(({ hosts, state, number }, place) => {
      for (const box of this.boxes(hosts)) {
        const out = this.asCards ? 1 : 2;
        ink.strokeStyle = token(state);
        ink.lineWidth = place === this.lit ? 4 : 2;
        ink.strokeRect(box.x - out, box.y - out, box.width + 2 * out - (this.asCards ? 0 : 1), box.height + 2 * out - (this.asCards ? 0 : 1));
        ink.fillStyle = token(state);
        ink.beginPath();
        ink.arc(box.x + box.width, box.y, 7.5, 0, 7);
        ink.fill();
        ink.fillStyle = token("surface");
        ink.font = `600 10px ${token("font")}`;
        ink.textAlign = "center";
        ink.textBaseline = "middle";
        ink.fillText(String(number), box.x + box.width, box.y + 0.5);
        ink.textAlign = "left";
      }
    });
  }

  /* One box around the rows of these hosts in a tile, as far as they lie together. */
  boxes(hosts) {
    const found = [];
    for (const cell of this.cells) {
      if (!hosts.has(cell.name)) continue;
      const right = cell.x + cell.width;
      const last = found.at(-1);
      const together = last && !this.asCards && cell.x >= last.x && cell.x < last.x + SIDE * cell.width && cell.y <= last.y + last.height;
      if (together && cell.y >= last.y) {
        last.width = Math.max(last.width, right - last.x);
        last.height = cell.y + cell.height - last.y;
      } else found.push({ x: cell.x, y: cell.y, width: cell.width, height: cell.height });
    }
    return found;
  }

  drawCursor(ink) {
    const cell = this.cells[this.cursor];
    if (!cell) return;
    ink.strokeStyle = token("focus");
    ink.lineWidth = 2;
    ink.strokeRect(cell.x - 2, cell.y - 2, cell.width + 3, cell.height + 3);
  }

  at(x, y) {
    return this.cells.findIndex((c) => x >= c.x && x < c.x + c.width && y >= c.y && y < c.y + c.height);
  }

  /* The nearest cell in a direction, for the arrow keys. */
  step(dx, dy) {
    const from = this.cells[this.cursor];
    if (!from) return this.cells.length ? 0 : -1;
    let [best, cost] = [this.cursor, Infinity];
    this.cells.forEach((cell, place) => {
      const ahead = dx ? (cell.x - from.x) * dx : (cell.y - from.y) * dy;
      const aside = Math.abs(dx ? cell.y - from.y : cell.x - from.x);
      if (ahead <= 0) return;
      if (ahead + 4 * aside < cost) [best, cost] = [place, ahead + 4 * aside];
    });
    return best;
  }
}
