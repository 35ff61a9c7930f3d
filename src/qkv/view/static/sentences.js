// A page of sentences; the URL contains the selection, so that a link restores it.

import { alignment } from "./alignment.js";
import { gradient } from "./colors.js";
import { hinted } from "./controls.js";
import { byId, element, pageData, themed, token } from "./dom.js";
import { list } from "./list.js";
import { figure } from "./numbers.js";
import { decoded, strongest, weight } from "./sentence.js";

/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

/** @type {{ ramps: Record<string, import("./colors.js").Color[]>, sentences: import("./sentence.js").Described[] }} */
const data = pageData();
const ramp = data.ramps.cividis;
const help =
  "Hover over words, links or cells; click to select one. In the map, use arrow keys, Home and End; Escape clears the selection.";
const sentences = element("nav", { id: "sentences", "aria-label": "Sentences" });
const readout = element("div.readout", { id: "readout" });
const stage = hinted(element("div.stage", { id: "stage" }));
const legend = element("div.legend");
const main = element("main", readout, stage, element("footer", legend, element("p", help)));
byId("page").replaceChildren(sentences, main);
byId("page").className = "beside";
const mark = list(data.sentences, sentences);

/**
 * Show a sentence.
 * @param {number} number index, from 0 @param {Focus | null} kept its selection
 */
function show(number, kept) {
  const sentence = decoded(data.sentences[number]);
  alignment(sentence, {
    ramp,
    sides: data.sentences[number].sides,
    home: stage,
    kept,
    shown: (focus) => readout.replaceChildren(...said(sentence, focus)),
    keep: (focus, spoken) => {
      history.replaceState(null, "", address(number, focus));
      if (spoken) byId("live").textContent = spokenFor(sentence, data.sentences[number].sides, focus);
    },
  });
  const bar = element("span.ramp");
  bar.style.background = gradient(ramp);
  const ends = sentence.scale.map((end) => element("span", figure(end)));
  legend.replaceChildren("weight", ends[0], bar, ends[1]);
  mark(number);
}

/**
 * The selection in words.
 * @param {Sentence} sentence @param {Focus | null} focus @returns {(Node | string)[]}
 */
function said(sentence, focus) {
  const { target = null, source = null } = focus ?? {};
  if (target !== null && source !== null) {
    const number = element("output", figure(weight(sentence, target, source)));
    return [token(sentence.target[target], "chip"), " attends to ", token(sentence.source[source], "chip"), number];
  }
  if (!focus || sentence.weights.length === 0) return ["What attends to what? Select a word or a cell."];
  const verb = target === null ? " is attended to by " : " attends to ";
  const name = target === null ? sentence.source[source ?? 0] : sentence.target[target];
  const found = strongest(sentence, focus, 4).map((cell) =>
    element("span.pair", token(cell.name, "chip"), element("output", figure(cell.value))),
  );
  return [token(name, "chip"), verb, ...found];
}

/**
 * The screen reader text of a cell.
 * @param {Sentence} sentence @param {[string, string]} sides @param {Focus | null} focus @returns {string}
 */
function spokenFor(sentence, sides, focus) {
  if (focus?.target == null || focus.source == null) return "No cell selected.";
  const { target, source } = focus;
  const value = figure(weight(sentence, target, source));
  const attending = sides[1].charAt(0).toUpperCase() + sides[1].slice(1);
  return `${attending} ${target + 1}, ${sentence.target[target]}; ${sides[0]} ${source + 1}, ${sentence.source[source]}: ${value}`;
}

/**
 * @param {number} number @param {Focus | null} focus
 * @returns {string} `#sentence`, or `#sentence/row/column`, all from 1; 0 means a whole column or row
 */
function address(number, focus) {
  const place = focus ? `/${(focus.target ?? -1) + 1}/${(focus.source ?? -1) + 1}` : "";
  return `#${number + 1}${place}`;
}

function follow() {
  const [number, row, column] = location.hash
    .slice(1)
    .split("/")
    .map((part) => Number.parseInt(part, 10) - 1);
  const chosen = data.sentences[number] ? number : 0;
  const { source, target } = data.sentences[chosen];
  const focus = {
    target: row >= 0 && row < target.length ? row : null,
    source: column >= 0 && column < source.length ? column : null,
  };
  show(chosen, focus.target === null && focus.source === null ? null : focus);
}

themed();
const count = data.sentences.length;
document.title = count > 0 ? `${data.sentences[0].from} · Attention` : "Attention";
byId("summary").textContent = count === 1 ? "one sentence" : `${count} sentences`;
if (count > 0) {
  addEventListener("hashchange", follow);
  addEventListener("resize", follow);
  follow();
} else {
  readout.textContent = "No sentences in this file.";
}
