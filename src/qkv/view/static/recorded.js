// Answers about a recorded scene, computed from what a saved page holds of each layer.

import { computed } from "./computed.js";
import { add, inflated, placed, product, unpacked } from "./network.js";
import { revived } from "./numbers.js";

/** @typedef {import("./network.js").Layer} Layer */
/** @typedef {import("./network.js").Tensor} Tensor */

/** @param {any} part tensors of a page, as `qkv.view.offline` writes them; null for none @returns {Promise<Record<string, Tensor>>} */
const tensorsOf = async (part) => (part ? unpacked(part.tensors, await inflated(part.bytes)) : {});

/**
 * @param {any} data a layer as `qkv.view.offline` writes it; null if the page holds nothing of it
 * @param {Record<string, Tensor>} inputs which layers share
 * @param {any} listed what the scene says of it @param {string[]} names of the sequences
 * @returns {Promise<Layer | null>}
 */
async function layerOf(data, inputs, listed, names) {
  if (!data) return null;
  const { tensors, bytes, ...own } = data;
  const found = { ...inputs, ...(await tensorsOf(data)) };
  const described = placed(own, found);
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
export async function recorded({ answers, inputs, layers, held }) {
  const given = revived(JSON.parse(new TextDecoder().decode(await inflated(answers))));
  const { sequences, layers: listed, title, written, opening } = given["api/scene"];
  const names = sequences.map((/** @type {any} */ each) => each.name);
  const shared = Object.assign({}, ...(await Promise.all(inputs.map(tensorsOf))));
  const opened = await Promise.all(layers.map((/** @type {any} */ each, /** @type {number} */ at) => layerOf(each, shared, listed[at], names)));
  const tokens = Object.fromEntries(sequences.map((/** @type {any} */ each) => [each.name, each.tokens ?? []]));
  return { ...computed({ tensors: {}, attentions: {} }, { layers: opened, tokens, title, written, opening, given }), held };
}
