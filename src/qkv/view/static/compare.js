// Two mechanisms side by side, and their difference, with a shared cursor.

import { element, token } from "./dom.js";
import { figure, finite, short } from "./numbers.js";
import { strip } from "./vectors.js";

const BARS = 40; // keys with a line of their own

/** @typedef {{ weights: number[], output: number[], rest?: number }} Outcome */
/** @typedef {import("./colors.js").Color[]} Ramp */
/** @typedef {{ before: Outcome, after: Outcome, places?: number[] }} Answer */

/**
 * @param {{ after: Answer, before?: Answer, label: (place: number) => string, ramp: Ramp }} given `before` is the result
 *   for the first mechanism, if that is not the recorded one
 * @returns {HTMLElement}
 */
export function compared({ after: answer, before: other, label, ramp }) {
  const after = byPlace(answer, answer.after);
  const before = other ? byPlace(other, other.after) : byPlace(answer, answer.before);
  const places = [...new Set([...before.keys(), ...after.keys()])].sort((a, b) => a - b);
  const [old, now] = [before, after].map((found) => places.map((place) => found.get(place) ?? 0));
  const difference = now.map((value, at) => value - old[at]);
  const largest = Math.max(...[...old, ...now].map((value) => Math.abs(finite(value))), 1e-30);
  const name = (at) => label(places[at]);
  const rows = linked([
    ["before", old, { label: name, ramp, largest }],
    ["after", now, { label: name, ramp, largest }],
    ["difference", difference, { label: name }],
  ]);
  const outputs = [(other ?? answer)[other ? "after" : "before"].output, answer.after.output];
  const change = outputs[1].map((value, at) => value - outputs[0][at]);
  const top = Math.max(...outputs.flat().map((value) => Math.abs(finite(value))), 1e-30);
  const vectors = linked([
    ["before", outputs[0], { largest: top }],
    ["after", outputs[1], { largest: top }],
    ["difference", change, { largest: top }],
  ]);
  const norm = Math.hypot(...change);
  return element(
    "div",
    element(
      "h3",
      "Weights",
      element(
        "small",
        ` moved between keys: ${figure(difference.reduce((sum, value) => sum + Math.abs(value), 0) / 2)}`,
      ),
    ),
    rows,
    bars(
      places.map((place, at) => ({ place, before: old[at], after: now[at] })),
      label,
      largest,
    ),
    element(
      "h3",
      "Output",
      element("small", ` changed by ${short(norm)}; its norm was ${short(Math.hypot(...outputs[0]))}`),
    ),
    vectors,
  );
}

/** @param {Answer} answer @param {Outcome} outcome @returns {Map<number, number>} weight by key */
function byPlace({ places }, { weights }) {
  return new Map(weights.map((value, at) => [places?.[at] ?? at, value]));
}

/**
 * Stacked strips with a shared cursor.
 * @param {[string, number[], Partial<import("./vectors.js").Numbers>][]} lines @returns {HTMLElement}
 */
function linked(lines) {
  /** @type {import("./vectors.js").Strip[]} */
  const strips = lines.map(([name, values, more]) =>
    strip({ values, name, ...more, pointed: (place) => strips.forEach((each) => each.point(place)) }),
  );
  return element("div.linked", ...lines.flatMap(([name], at) => [element("span.caption", name), strips[at].node]));
}

/**
 * The keys whose weights are largest or change most, each with two bars.
 * @param {{ place: number, before: number, after: number }[]} keys @param {(place: number) => string} label
 * @param {number} largest @returns {HTMLElement}
 */
function bars(keys, label, largest) {
  const chosen = [...keys]
    .sort((a, b) => Math.max(Math.abs(b.before), Math.abs(b.after)) - Math.max(Math.abs(a.before), Math.abs(a.after)))
    .slice(0, BARS);
  const lines = chosen
    .sort((a, b) => a.place - b.place)
    .map(({ place, before, after }) => {
      const line = element(
        "li",
        token(label(place)),
        element("i.old"),
        element("i.new"),
        element("output", figure(before)),
        element("output", figure(after)),
      );
      for (const [name, value] of Object.entries({ before, after }))
        line.style.setProperty(`--${name}`, String(Math.abs(value) / largest));
      return line;
    });
  const more =
    keys.length > chosen.length ? [element("p.note", `The ${chosen.length} largest of ${keys.length}.`)] : [];
  return element("div", element("ol.bars", { "aria-label": "weights before and after" }, ...lines), ...more);
}
