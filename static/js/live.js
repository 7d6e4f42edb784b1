/* Live topics in a page: one websocket, numbered deltas, resume after a gap, and saying when nothing is new.
 * The talk and the topics: clusterwatch/live/README.md. The frames: clusterwatch/store/frames.py. */

const STALE_AFTER_MS = 5000;
const STEADY = new Set(["cluster", "job"]);
const SIGNED_OUT = 4401;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 8000;
/* A second question about the same gap waits, so that a burst of frames asks once. */
const ASK_AGAIN_MS = 2000;

function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

function decode(value) {
  const packed = value !== null && typeof value === "object" && typeof value.b64 === "string";
  return packed && Object.keys(value).length === 1 ? fromBase64(value.b64) : value;
}

function decodeAll(content) {
  return Object.fromEntries(Object.entries(content).map(([key, value]) => [key, decode(value)]));
}

/* The state after a delta; changed values are new objects, so a page may compare by identity. */
export function applyDelta(state, delta) {
  const result = { ...state };
  for (const key of delta.gone ?? []) delete result[key];
  Object.assign(result, decodeAll(delta.set ?? {}));
  for (const [key, change] of Object.entries(delta.rows ?? {})) {
    const rows = { ...result[key], ...change.put };
    for (const id of change.gone ?? []) delete rows[id];
    result[key] = rows;
  }
  for (const [key, pairs] of Object.entries(delta.cells ?? {})) {
    const cells = result[key].slice();
    for (let i = 0; i < pairs.length; i += 2) cells[pairs[i]] = pairs[i + 1];
    result[key] = cells;
  }
  return result;
}

function changedKeys(frame) {
  if (frame.full) return new Set(Object.keys(frame.full));
  const { set = {}, gone = [], rows = {}, cells = {} } = frame.delta;
  return new Set([...Object.keys(set), ...gone, ...Object.keys(rows), ...Object.keys(cells)]);
}

/* What is held of one topic. `take` answers "new", "old" (seen before) or "gap" (ask again). */
export class Topic {
  constructor(name) {
    this.name = name;
    this.steady = STEADY.has(name.split(":", 1)[0]);
    this.epoch = "";
    this.number = 0;
    this.state = null;
    this.handlers = new Set();
    this.heardMs = Date.now();
    this.staleSinceMs = null;
    this.askedMs = 0;
  }

  take(frame) {
    if (frame.full) {
      if (frame.epoch === this.epoch && frame.number < this.number) return "old";
      this.state = decodeAll(frame.full);
    } else {
      if (this.state === null || frame.epoch !== this.epoch) return "gap";
      if (frame.number <= this.number) return "old";
      if (frame.number !== this.number + 1) return "gap";
      this.state = applyDelta(this.state, frame.delta);
    }
    this.epoch = frame.epoch;
    this.number = frame.number;
    return "new";
  }

  get question() {
    return this.state === null
      ? { topic: this.name }
      : { topic: this.name, epoch: this.epoch, number: this.number };
  }
}

export class Live {
  constructor(url) {
    this.url = url;
    this.topics = new Map();
    this.socket = null;
    this.retryMs = RETRY_MIN_MS;
    this.aheadMs = 0;
    this.signedOut = false;
    this.heardMs = Date.now();
    this.timers = { retry: null, watch: null };
  }

  /* The server's clock in ms: the browser's may be wrong, and ages are counted from the server's times. */
  now() {
    return Date.now() + this.aheadMs;
  }

  subscribe(name, handlers) {
    let topic = this.topics.get(name);
    if (!topic) {
      topic = new Topic(name);
      this.topics.set(name, topic);
      this.ask([topic]);
    }
    topic.handlers.add(handlers);
    if (topic.state !== null) handlers.frame?.(topic.state, { full: true, keys: new Set(Object.keys(topic.state)) });
    if (topic.staleSinceMs !== null) handlers.stale?.(topic.staleSinceMs);
    this.start();
    return () => this.leave(topic, handlers);
  }

  leave(topic, handlers) {
    topic.handlers.delete(handlers);
    if (topic.handlers.size > 0 || this.topics.get(topic.name) !== topic) return;
    this.topics.delete(topic.name);
    this.send({ unsubscribe: [topic.name] });
  }

  start() {
    if (this.timers.watch === null) this.timers.watch = setInterval(() => this.checkStale(), 500);
    if (this.socket === null && this.timers.retry === null && !this.signedOut) this.connect();
  }

  connect() {
    this.timers.retry = null;
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.onopen = () => this.ask([...this.topics.values()]);
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = (event) => this.lost(event.code);
  }

  lost(code) {
    this.socket = null;
    if (code === SIGNED_OUT) {
      this.signedOut = true;
      document.dispatchEvent(new CustomEvent("live:signed-out"));
      return;
    }
    const wait = this.retryMs * (0.5 + Math.random());
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MAX_MS);
    this.timers.retry = setTimeout(() => this.connect(), wait);
  }

  send(message) {
    if (this.socket !== null && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  ask(topics) {
    if (topics.length === 0) return;
    for (const topic of topics) topic.askedMs = Date.now();
    this.send({ subscribe: topics.map((topic) => topic.question) });
  }

  receive(message) {
    this.heardMs = Date.now();
    this.retryMs = RETRY_MIN_MS;
    if (message.beat_ms) this.aheadMs = message.beat_ms - Date.now();
    for (const frame of message.frames ?? []) this.receiveFrame(frame);
    for (const name of message.waiting ?? []) this.tell(name, "waiting");
    for (const name of message.denied ?? []) this.tell(name, "denied");
  }

  receiveFrame(frame) {
    const topic = this.topics.get(frame.topic);
    if (!topic) return;
    const outcome = topic.take(frame);
    if (outcome === "gap" && Date.now() - topic.askedMs > ASK_AGAIN_MS) this.ask([topic]);
    if (outcome !== "new") return;
    topic.heardMs = Date.now();
    if (topic.steady) this.aheadMs = frame.at_ms - Date.now();
    const change = { full: Boolean(frame.full), keys: changedKeys(frame), atMs: frame.at_ms };
    for (const handlers of topic.handlers) handlers.frame?.(topic.state, change);
    document.dispatchEvent(
      new CustomEvent("live:frame", { detail: { topic: topic.name, state: topic.state, change } }),
    );
    this.checkStale();
  }

  tell(name, what) {
    const topic = this.topics.get(name);
    if (topic) for (const handlers of topic.handlers) handlers[what]?.();
  }

  checkStale() {
    const nowMs = Date.now();
    for (const topic of this.topics.values()) {
      const heardMs = topic.steady ? topic.heardMs : Math.max(topic.heardMs, this.heardMs);
      const since = nowMs - heardMs > STALE_AFTER_MS ? heardMs : null;
      if (since !== topic.staleSinceMs) this.setStale(topic, since);
    }
  }

  setStale(topic, sinceMs) {
    topic.staleSinceMs = sinceMs;
    const shown = sinceMs === null ? null : sinceMs + this.aheadMs;
    for (const handlers of topic.handlers) handlers.stale?.(shown);
    for (const element of document.querySelectorAll("[data-live-stale]")) {
      if (element.dataset.liveStale !== topic.name) continue;
      element.hidden = shown === null;
      if (shown !== null) element.textContent = `stale since ${new Date(shown).toISOString().slice(11, 19)} UTC`;
    }
    document.dispatchEvent(new CustomEvent("live:stale", { detail: { topic: topic.name, sinceMs: shown } }));
  }
}

const scheme = location.protocol === "https:" ? "wss:" : "ws:";
export const live = new Live(`${scheme}//${location.host}/ws/live/`);
