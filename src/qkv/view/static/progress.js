// How much of a map is computed exactly, and the button that stops the computation.

import { path, shownIn } from "./answers.js";
import { button } from "./controls.js";
import { element } from "./dom.js";

const EVERY = 400; // milliseconds between questions
const SEEN = { sampled: "sampled", exact: "exact here", loading: "loading" };

/** @typedef {import("./shell.js").State} State */
/** @typedef {{ seen: (shown: keyof typeof SEEN) => void, watch: (state: State) => void, close: () => void }} Heard */
/** @typedef {Heard & { home: HTMLElement }} Progress */

/**
 * @param {import("./shell.js").Page} page @param {() => void} further called when more is exact
 * @param {() => void} changed called when the line appears or disappears, which moves its surroundings
 * @returns {Progress}
 */
export function progress(page, further, changed) {
  const bar = document.createElement("progress");
  const [badge, text] = [element("span.badge"), element("span")];
  const stop = button("Cancel", "Stop computing", () => tell());
  const home = element("div.progress", { role: "status" }, badge, text, bar, stop);
  home.hidden = true;
  /** @type {import("./shell.js").State} */
  let state = {};
  let [timer, done, verb] = [0, -1, "cancel"];
  const tell = async () => {
    await page.source.post(path(verb, { layer: state.layer, head: state.head })).catch(() => {});
    ask();
  };
  const ask = async () => {
    clearTimeout(timer);
    const { layer, head, how } = state;
    const asked = state;
    const answer = await page.source
      .json(path("progress", { layer, head, how, quantity: shownIn(state) }))
      .catch(() => ({ done: 1, state: "exact" }));
    if (asked !== state) return;
    const exact = answer.state === "exact";
    const hidden = home.hidden;
    home.hidden = exact;
    bar.value = answer.done;
    bar.setAttribute("aria-label", "exactly computed");
    text.textContent = `${Math.floor(100 * answer.done)} % of the map computed`;
    verb = answer.state === "cancelled" ? "resume" : "cancel";
    stop.textContent = verb === "resume" ? "Resume" : "Cancel";
    stop.setAttribute("aria-label", verb === "resume" ? "Resume computing" : "Stop computing");
    if (exact ? !hidden || done !== 1 : answer.done - done > 0.05) further();
    done = answer.done;
    if (hidden !== home.hidden) changed();
    if (!exact) timer = setTimeout(ask, EVERY);
  };
  return {
    home,
    seen: (shown) => {
      badge.textContent = SEEN[shown];
      badge.dataset.state = shown;
    },
    watch: (next) => {
      [state, done, home.hidden] = [next, -1, true];
      ask();
    },
    close: () => {
      state = {};
      clearTimeout(timer);
    },
  };
}
