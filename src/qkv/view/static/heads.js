// A gallery of all heads, each with its measured behavior.

import { latest, sidesOf } from "./answers.js";
import { painted } from "./colors.js";
import { touched } from "./controls.js";
import { element } from "./dom.js";
import { figure, finite, floats } from "./numbers.js";

const SIDE = 32;
const MEANING = {
  diagonal: "attends along the diagonal",
  next: "attends to the token after",
  previous: "attends to the token before",
  local: "attends to its neighbors",
  first: "attends to the first token",
  separator: "attends to punctuation and special tokens",
  same: "attends to the same token elsewhere, as to copy it",
  broad: "attends broadly to many tokens",
};

/** @typedef {{ name: keyof typeof MEANING, value: number | null, threshold: number, holds: boolean }} Label */
/** @typedef {{ layer: number, head: number, thumbnail: string, labels: Label[] }} Head */

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function heads(home, page) {
  const filters = element("div.filters", { role: "group", "aria-label": "Show heads that" });
  const gallery = element("div.gallery", { "aria-busy": "true" });
  const numbers = element("aside.panel.numbers", { "aria-label": "The numbers of a head" });
  home.append(filters, element("div.heads-split", gallery, numbers));
  let [shown, fresh] = [/** @type {Element | null} */ (null), false];
  /** @param {Element | null} head whose numbers are shown */
  const pointed = (head) => {
    if (!head) return;
    shown = head;
    const title = element("h3", head.closest(".layer")?.querySelector("h2")?.textContent ?? "", ", ", head.querySelector("h3")?.textContent ?? "");
    const labels = [...head.querySelectorAll(".label")].map((label) => element("p", label.cloneNode(true), " ", label.getAttribute("title") ?? ""));
    const hint = touched() ? "Touch a head for its numbers, and again for its map." : "Point at a head for its numbers, click it for its map.";
    const note = element("p.note", `A bar that reaches its mark is a label. ${hint}`);
    numbers.replaceChildren(title, ...labels, ...[...head.querySelectorAll("dl")].map((list) => list.cloneNode(true)), note);
  };
  const headOf = (/** @type {Event} */ { target }) => /** @type {Element} */ (target).closest(".head");
  // A finger cannot point: its first touch shows the numbers, and only the next one follows the link.
  gallery.addEventListener("pointerdown", (event) => {
    fresh = event.pointerType === "touch" && headOf(event) !== shown;
  });
  gallery.addEventListener("click", (event) => {
    if (!fresh) return;
    event.preventDefault();
    event.stopPropagation();
    pointed(headOf(event));
    fresh = false;
  });
  gallery.addEventListener("pointerover", (event) => event.pointerType !== "touch" && pointed(headOf(event)));
  gallery.addEventListener("focusin", (event) => pointed(headOf(event)));
  const run = latest(gallery);
  /** @type {Promise<Head[]> | undefined} */
  let asked;
  return {
    show: (state) => {
      asked ??= page.source.json("api/heads");
      const fill = (found) => {
        gallery.removeAttribute("aria-busy");
        filters.replaceChildren(...choices(found, state, page));
        const wanted = found.filter(({ labels }) => fits(labels, state.only));
        const most = Math.max(...page.layers.map((layer) => layer.heads));
        gallery.style.setProperty("--heads", String(most));
        gallery.style.setProperty("--layers", String(page.layers.length));
        const layers = [...new Set(wanted.map(({ layer }) => layer))];
        gallery.replaceChildren(
          ...layers.map((layer) => {
            const cards = wanted.filter((head) => head.layer === layer).map((head) => card(head, state, page));
            const [down, across] = sidesOf(page, page.layers[layer]);
            const axes = element("p.caption", `${down} ↓ ${across} →`);
            const title = element("h2", { title: page.layers[layer].path }, page.layers[layer].name);
            return element("section.layer", title, axes, element("div.cards", ...cards));
          }),
        );
        if (layers.length === 0) gallery.replaceChildren("No head has this label.");
        numbers.hidden = layers.length === 0;
        pointed(gallery.querySelector(".head"));
      };
      run(asked, fill);
    },
  };
}

/** @param {Label[]} labels @param {string | undefined} only @returns {boolean} */
function fits(labels, only) {
  if (only === undefined || !(only === "none" || Object.hasOwn(MEANING, only))) return true;
  return only === "none"
    ? !labels.some(({ holds }) => holds)
    : labels.some(({ name, holds }) => holds && name === only);
}

/**
 * @param {Head[]} found @param {import("./shell.js").State} state @param {import("./shell.js").Page} page
 * @returns {HTMLElement[]}
 */
function choices(found, state, page) {
  return ["all", ...Object.keys(MEANING), "none"].map((name) => {
    const only = name === "all" ? undefined : name;
    const size = found.filter(({ labels }) => fits(labels, only)).length;
    const button = element(
      "button.filter",
      { type: "button", "aria-pressed": String(state.only === only), title: MEANING[name] ?? "" },
      name,
      element("small", String(size)),
    );
    button.addEventListener("click", () => page.go({ only: only ?? null }));
    return button;
  });
}

/**
 * @param {Head} given @param {import("./shell.js").State} state @param {import("./shell.js").Page} page
 * @returns {HTMLElement}
 */
function card({ layer, head, thumbnail, labels }, state, page) {
  const values = floats(thumbnail);
  const columns = Math.min(SIDE, page.layers[layer].columns);
  const [low, high] = [
    values.reduce((least, value) => Math.min(least, finite(value)), 0),
    values.reduce((most, value) => Math.max(most, finite(value)), 1e-30),
  ];
  const picture = painted({ rows: values.length / columns, columns, values }, page.ramp(state), {
    low,
    high,
    log: state.log === "1" && low === 0,
  });
  const holding = labels.filter(({ holds }) => holds);
  const named =
    holding.length > 0
      ? holding.map(({ name }) => element("span.label", { title: MEANING[name] }, name))
      : [element("span.label.none", { title: "no bar reaches its mark" }, "none")];
  const numbers = labels.map(({ name, value, threshold, holds }) => {
    const bar = element("i.gauge");
    bar.style.setProperty("--share", String(Math.min(1, Math.max(0, value ?? 0))));
    bar.style.setProperty("--threshold", String(Math.min(1, threshold)));
    const said = value === null ? "undefined" : figure(value);
    const told = `${MEANING[name]}: ${said}, label from ${figure(threshold)}`;
    return element(
      "div",
      { class: holds ? "holds" : "", title: told },
      element("dt", name),
      bar,
      element("dd", value === null ? "–" : figure(value)),
    );
  });
  const name = page.layers[layer].name;
  const open = element(
    "a",
    { href: `#view=map&layer=${layer}&head=${head}`, "aria-label": `${name}, head ${head}: open its map` },
    picture,
  );
  return element(
    "article.head",
    open,
    element("h3", `head ${head}`),
    element("p.labels", ...named),
    element("dl", ...numbers),
  );
}
