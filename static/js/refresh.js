/* Parts of an open page taken anew from the server's own HTML: one truth, drawn in one place. */

import { localTimes } from "./frame.js";

/* Replaces what differs; details that were open stay open. */
export function swapPart(before, after) {
  if (!before || !after || before.innerHTML === after.innerHTML) return;
  const open = [...before.querySelectorAll("details")].map((part) => part.open);
  before.replaceChildren(...after.childNodes);
  before.querySelectorAll("details").forEach((part, place) => {
    part.open = open[place] ?? part.open;
  });
}

/* A function that asks for a fresh page, at most once a second, and swaps `selectors`; `then` gets the page. */
export function refresher(selectors, then = () => {}) {
  let wanted = false;
  let busy = false;
  return async function refresh() {
    wanted = true;
    if (busy) return;
    busy = true;
    while (wanted) {
      wanted = false;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (answer.ok && !answer.redirected) {
          const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
          for (const selector of selectors) {
            swapPart(document.querySelector(selector), fresh.querySelector(selector));
          }
          then(fresh);
          localTimes();
        }
      } catch {
        /* the network is away: live.js says that the page is stale, the next frame asks again */
      }
      await new Promise((done) => setTimeout(done, 1000));
    }
    busy = false;
  };
}
