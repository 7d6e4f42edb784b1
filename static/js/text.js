/* Numbers, ages and times as clusterwatch/web/numbers.py writes them. */

const THIN = "\u202f";
export const DASH = "–";

export function grouped(value, digits = 0) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  const [whole, part] = Math.abs(value).toFixed(digits).split(".");
  const text = whole.replace(/\B(?=(\d{3})+$)/g, THIN) + (part ? `.${part}` : "");
  return value < 0 && Number(value.toFixed(digits)) !== 0 ? `\u2212${text}` : text;
}

export function duration(seconds) {
  if (seconds === null || Number.isNaN(seconds)) return DASH;
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}${THIN}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${THIN}min ${whole % 60}${THIN}s`;
  const minutes = String(Math.floor((whole % 3600) / 60)).padStart(2, "0");
  if (whole < 172800) return `${Math.floor(whole / 3600)}${THIN}h ${minutes}${THIN}min`;
  return `${Math.floor(whole / 86400)}${THIN}d`;
}

/* UTC time of day, with the date when it is not today's. */
export function clock(at, now = new Date()) {
  const text = at.toISOString();
  const day = text.slice(0, 10);
  return (day === now.toISOString().slice(0, 10) ? "" : `${day} `) + text.slice(11, 19);
}

/* A value of a colour token. */
export function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/* Replaces the text of an element, and lets its row blink once, only when it changed. */
export function put(element, text) {
  if (!element || element.textContent.trim() === text) return false;
  element.textContent = text;
  return true;
}
