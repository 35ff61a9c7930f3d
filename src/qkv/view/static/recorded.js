// Answers about a recorded scene, computed from what a saved page holds of each layer.

import { computed } from "./computed.js";
import { add, inflated, opened, product } from "./network.js";
import { revived } from "./numbers.js";

/** @typedef {import("./network.js").Layer} Layer */

/**
 * @param {any} data a layer as `qkv.view.offline` writes it; null if the page holds nothing of it
 * @param {any} listed what the scene says of it @param {string[]} names of the sequences
 * @returns {Promise<Layer | null>}
 */
async function layerOf(data, listed, names) {
  if (!data) return null;
  const { tensors, bytes, ...own } = data;
  const { tensors: found, attentions } = opened({ tensors, attentions: { own } }, await inflated(bytes));
  const described = /** @type {any} */ (attentions.own);
  const vectors = (/** @type {"query" | "key" | "value"} */ side, /** @type {number} */ count) => {
    if (!own[side] || Array.isArray(own[side])) return described[side];
    const { input, weight, bias } = own[side];
    const rows = found[weight.tensor].rows;
    const home = Array.from({ length: count }, () => []);
    add(home, product(found[weight.tensor], found[bias?.tensor]?.values, found[input.tensor].values, 0, rows), rows / count);
    return home;
  };
  return {
    ...described,
    name: listed.name,
    own: { ...described, short: listed.short, equation: listed.equation },
    mask: described.mask ?? { name: "none" },
    choose: () => undefined,
    sides: [names[listed.queries], names[listed.keys]],
    shape: [listed.rows, listed.columns],
    queries: vectors("query", own.heads),
    keys: vectors("key", own.groups),
    values: vectors("value", own.groups),
    inputs: described.inputs ?? [],
    rows: Array.from({ length: own.heads }, () => []),
    mechanisms: [],
  };
}

/** @param {any} data @returns {Promise<import("./answers.js").Source>} */
export async function recorded({ answers, layers, held }) {
  const given = revived(JSON.parse(new TextDecoder().decode(await inflated(answers))));
  const { sequences, layers: listed, title, written, opening } = given["api/scene"];
  const names = sequences.map((/** @type {any} */ each) => each.name);
  const opened = await Promise.all(layers.map((/** @type {any} */ each, /** @type {number} */ at) => layerOf(each, listed[at], names)));
  const tokens = Object.fromEntries(sequences.map((/** @type {any} */ each) => [each.name, each.tokens ?? []]));
  return { ...computed({ tensors: {}, attentions: {} }, { layers: opened, tokens, title, written, opening, given }), held };
}
