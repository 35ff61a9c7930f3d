// One sentence on the stage; what is looked at lives in the page's address, so that a link leads back to it.

import { gradient } from "./colors.js";
import { byId, element, token } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { links } from "./links.js";
import { list } from "./list.js";
import { decoded, figure, strongest, weight } from "./sentence.js";

/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

/** @type {{ ramp: import("./colors.js").Color[], sentences: import("./sentence.js").Described[] }} */
const data = JSON.parse(byId("data").textContent ?? "");
const mark = list(data.sentences, byId("sentences"));

/**
 * Show a sentence.
 * @param {number} number which, from 0
 * @param {Focus | null} kept what is looked at in it
 */
function stage(number, kept) {
  const sentence = decoded(data.sentences[number]);
  const { cell, pitch } = heights(sentence);
  /** @type {Focus | null} */
  let hovered = null;
  const refresh = () => {
    const focus = hovered ?? kept;
    for (const view of [map, sides]) view.show(focus);
    byId("readout").replaceChildren(...said(sentence, focus));
  };
  /** @type {import("./heatmap.js").Listener} */
  const listener = {
    hover: (focus) => {
      if (focus?.target === hovered?.target && focus?.source === hovered?.source) return;
      hovered = focus;
      refresh();
    },
    keep: (focus, spoken) => {
      [kept, hovered] = [focus, null];
      history.replaceState(null, "", address(number, focus));
      if (spoken) byId("live").textContent = spokenFor(sentence, focus);
      refresh();
    },
  };
  const map = heatmap(sentence, data.ramp, listener);
  const sides = links(sentence, { source: pitch, target: cell }, listener);
  const empty = sentence.weights.length === 0;
  const grid = element(
    "div",
    { class: "grid" },
    element("span", { class: "caption first" }, "source"),
    element("span", { class: "caption second" }, "target"),
    map.columns,
    sides.sources,
    sides.links,
    sides.targets,
    empty ? element("p", { class: "empty" }, "Nothing to attend to.") : map.map,
  );
  for (const [name, value] of Object.entries({ cell, pitch, wide: cell })) grid.style.setProperty(`--${name}`, `${value}px`);
  grid.style.setProperty("--across", String(sentence.source.length));
  grid.style.setProperty("--down", String(sentence.target.length));
  byId("stage").replaceChildren(grid);
  const longest = Math.max(0, ...[...map.columns.querySelectorAll("bdi")].map((label) => label.offsetWidth));
  grid.style.setProperty("--longest", `${longest}px`);
  const across = wide(map.columns, sentence.source.length, cell, longest / 2);
  grid.style.setProperty("--wide", `${across}px`);
  grid.classList.toggle("upright", longest <= across);
  legend(sentence);
  mark(number);
  refresh();
}

/**
 * Rows as high as the sentence allows; source tokens spread over the height of the map.
 * @param {Sentence} sentence
 * @returns {{ cell: number, pitch: number }} pixels
 */
function heights({ source, target }) {
  const cell = Math.round(Math.min(38, Math.max(18, 560 / Math.max(target.length, 1))));
  const spread = (target.length * cell) / Math.max(1, source.length);
  return { cell, pitch: Math.min(1.5 * cell, Math.max(16, spread)) };
}

/**
 * Columns as wide as the page allows.
 * @param {HTMLElement} columns
 * @param {number} count
 * @param {number} cell
 * @param {number} overhang of the last slanted label
 * @returns {number} pixels
 */
function wide(columns, count, cell, overhang) {
  const stage = byId("stage");
  const padding = Number.parseFloat(getComputedStyle(stage).paddingInlineEnd);
  const left = columns.getBoundingClientRect().left - stage.getBoundingClientRect().left + stage.scrollLeft;
  const room = stage.clientWidth - left - padding - overhang;
  return Math.floor(Math.min(1.25 * cell, Math.max(18, room / Math.max(1, count))));
}

/**
 * What is looked at, in words.
 * @param {Sentence} sentence
 * @param {Focus | null} focus
 * @returns {(Node | string)[]}
 */
function said(sentence, focus) {
  const { target = null, source = null } = focus ?? {};
  if (target !== null && source !== null) {
    const number = element("output", {}, figure(weight(sentence, target, source)));
    return [token(sentence.target[target], "chip"), " attends to ", token(sentence.source[source], "chip"), number];
  }
  if (!focus || sentence.weights.length === 0) return ["Which source words did each target word attend to?"];
  const verb = target === null ? " is attended to by " : " attends to ";
  const name = target === null ? sentence.source[source ?? 0] : sentence.target[target];
  const found = strongest(sentence, focus, 4).map((cell) =>
    element("span", { class: "pair" }, token(cell.name, "chip"), element("output", {}, figure(cell.value))),
  );
  return [token(name, "chip"), verb, ...found];
}

/**
 * What a screen reader says of a cell.
 * @param {Sentence} sentence
 * @param {Focus | null} focus
 * @returns {string}
 */
function spokenFor(sentence, focus) {
  if (focus?.target == null || focus.source == null) return "No cell.";
  const { target, source } = focus;
  const value = figure(weight(sentence, target, source));
  return `Target ${target + 1}, ${sentence.target[target]}; source ${source + 1}, ${sentence.source[source]}: ${value}`;
}

/** @param {Sentence} sentence */
function legend({ scale: [low, high] }) {
  const bar = element("span", { class: "ramp" });
  bar.style.background = gradient(data.ramp);
  byId("legend").replaceChildren("weight", element("span", {}, figure(low)), bar, element("span", {}, figure(high)));
}

/**
 * @param {number} number
 * @param {Focus | null} focus
 * @returns {string} `#sentence`, or `#sentence/row/column`, all from 1; 0 stands for a whole column or row
 */
function address(number, focus) {
  const place = focus ? `/${(focus.target ?? -1) + 1}/${(focus.source ?? -1) + 1}` : "";
  return `#${number + 1}${place}`;
}

function follow() {
  const [number, row, column] = location.hash.slice(1).split("/").map((part) => Number.parseInt(part, 10) - 1);
  const chosen = data.sentences[number] ? number : 0;
  const { source, target } = data.sentences[chosen];
  const focus = {
    target: row >= 0 && row < target.length ? row : null,
    source: column >= 0 && column < source.length ? column : null,
  };
  stage(chosen, focus.target === null && focus.source === null ? null : focus);
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = dark === "dark" ? "light" : "dark";
});

const count = data.sentences.length;
byId("summary").textContent = count === 1 ? "one sentence" : `${count} sentences`;
if (count > 0) {
  addEventListener("hashchange", follow);
  addEventListener("resize", follow);
  follow();
} else {
  byId("readout").textContent = "No sentences in this file.";
}
