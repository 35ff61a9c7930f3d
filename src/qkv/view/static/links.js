// Source and target side by side, with a link for each significant weight.

import { element, shape, token } from "./dom.js";
import { finite } from "./numbers.js";
import { fraction, weight } from "./sentence.js";

/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

const [WIDTH, NARROW] = [150, 64];
const FAINTEST = 0.05; // of the largest weight: fainter links would only be a haze
/** Which links are drawn: from which share of the largest weight, and at most how many for each token that attends. */
const DRAWN = {
  some: { from: FAINTEST },
  more: { from: 0.2 },
  most: { from: 0.5 },
  top1: { from: FAINTEST, top: 1 },
  top3: { from: FAINTEST, top: 3 },
};
const MOST = 4000; // links that a browser still draws while the mouse moves
const THICKEST = 9;

/**
 * Build the two columns and the links between them.
 * @param {Sentence} sentence @param {{ source: number, target: number }} pitch pixels from one token to the next
 * @param {import("./heatmap.js").Listener} listener
 * @returns {{ sources: HTMLElement, links: SVGElement, targets: HTMLElement, show: (focus: Focus | null) => void }}
 */
export function links(sentence, pitch, listener) {
  const sources = side(sentence, "source", (source) => ({ target: null, source }), listener);
  const targets = side(sentence, "target", (target) => ({ target, source: null }), listener);
  const height = Math.max(sentence.source.length * pitch.source, sentence.target.length * pitch.target);
  const width = innerWidth < 760 ? NARROW : WIDTH;
  const drawing = shape("svg", { width, height, class: "links", "aria-hidden": "true" });
  const paths = drawn(sentence, pitch, width);
  for (const { path, target, source } of paths) {
    path.addEventListener("pointerenter", () => listener.hover({ target, source }));
    path.addEventListener("pointerleave", () => listener.hover(null));
    path.addEventListener("click", () => listener.keep({ target, source }, false));
  }
  drawing.append(...paths.map(({ path }) => path));

  /** @param {Focus | null} focus */
  const show = (focus) => {
    const { target = null, source = null } = focus ?? {};
    drawing.classList.toggle("chosen", focus !== null);
    for (const link of paths) {
      const on = (target === null || target === link.target) && (source === null || source === link.source);
      link.path.classList.toggle("on", focus !== null && on);
    }
    mark(sources, source, (s) => (target === null ? 0 : fraction(sentence, weight(sentence, target, s))));
    mark(targets, target, (t) => (source === null ? 0 : fraction(sentence, weight(sentence, t, source))));
  };
  return { sources, links: drawing, targets, show };
}

/**
 * @param {Sentence} sentence @param {"source" | "target"} name @param {(place: number) => Focus} focus
 * @param {import("./heatmap.js").Listener} listener @returns {HTMLElement}
 */
function side(sentence, name, focus, listener) {
  const items = sentence[name].map((text, place) => {
    const note = sentence.notes?.[name][place];
    const item = element("li", note ? { "data-note": note, title: note } : {}, token(text));
    item.addEventListener("pointerenter", () => listener.hover(focus(place)));
    item.addEventListener("pointerleave", () => listener.hover(null));
    item.addEventListener("click", () => listener.keep(focus(place), false));
    return item;
  });
  return element("ol", { class: `${name}s`, "aria-label": `${name}s` }, ...items);
}

/**
 * @param {Sentence} sentence @param {{ source: number, target: number }} pitch @param {number} width
 * @returns {{ path: SVGElement, target: number, source: number }[]} weakest first, so that strong ones are drawn on top
 */
function drawn(sentence, pitch, width) {
  const largest = sentence.weights.reduce((most, value) => Math.max(most, Math.abs(finite(value))), 0);
  const found = [];
  const { from, top = Number.POSITIVE_INFINITY } = DRAWN[sentence.links ?? "some"];
  for (let target = 0; target < sentence.target.length; target++) {
    const row = [];
    for (let source = 0; source < sentence.source.length; source++) {
      const value = weight(sentence, target, source);
      const strength = Math.abs(value) / largest;
      if (strength >= from) row.push({ target, source, value, strength });
    }
    found.push(...(row.length > top ? row.sort((a, b) => b.strength - a.strength).slice(0, top) : row));
  }
  found.sort((a, b) => a.strength - b.strength);
  return found.slice(-MOST).map(({ target, source, value, strength }) => {
    const [start, end] = [(source + 0.5) * pitch.source, (target + 0.5) * pitch.target];
    const path = shape("path", {
      d: `M0 ${start}C${width / 2} ${start} ${width / 2} ${end} ${width} ${end}`,
      "stroke-width": Math.max(1, THICKEST * strength),
      class: value < 0 ? "negative" : "",
    });
    path.style.setProperty("--strength", String(strength));
    return { path, target, source };
  });
}

/** @param {HTMLElement} list @param {number | null} chosen @param {(place: number) => number} share */
function mark(list, chosen, share) {
  [...list.children].forEach((item, place) => {
    item.classList.toggle("on", place === chosen);
    if (item instanceof HTMLElement) item.style.setProperty("--share", String(share(place)));
  });
}
