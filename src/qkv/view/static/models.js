// Whole models, computed here: translators, language models and classifiers, with blocks or cells.

import { add, attending, bidirectional, block, cellStep, crossAttention, embedded, hiddenOf, joined } from "./network.js";
import { linear, norm, remember, selfAttention, sum } from "./network.js";

/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Layer} Layer */
/** @typedef {import("./network.js").Choose} Choose */
/** @typedef {{ embed: string, scale: number, positions: string }} Embedding */
/** @typedef {{ name: string, blocks: number, place: string, activation: string, window: number | null }} Stack */
/** @typedef {{ embedding: Embedding, norm: string, residual: boolean, stack?: Stack, cells?: { name: string, cell: string, layers: number } }} Encoder */
/**
 * @typedef {object} Decoder recurrent, as the encoder's states are split into directions, and those into keys and values
 * @property {string} cell @property {number} layers @property {string} wiring @property {number} directions
 * @property {boolean} split @property {boolean} narrow @property {string | null} attention @property {number | null} window
 */
/**
 * @typedef {object} Parts
 * @property {"translate" | "generate" | "classify"} task
 * @property {Encoder} encoder @property {Embedding} embedding of the decoder @property {Stack} [stack] @property {Decoder} [cells]
 * @property {string} norm @property {string | null} pool
 * @property {{ bos: number, eos: number, never: number[] }} marks
 * @property {{ each: number, more: number, longest: [number, number][] }} limit of the tokens of an answer
 */
/** @typedef {{ layers: Layer[], step: (ids: number[]) => Float32Array }} Reading reads more tokens, and scores the next */

const NONE = { name: "none" };
const ACROSS = /** @type {[string, string]} */ (["target", "source"]);

/** @param {Float32Array} x @param {number} rows @returns {Float32Array[]} */
function rowsOf(x, rows) {
  const width = x.length / rows;
  return Array.from({ length: rows }, (_, i) => x.subarray(i * width, (i + 1) * width));
}

/** @param {Float32Array[]} parts @returns {Float32Array} */
function beside(...parts) {
  const out = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** @param {number | null} reach of a window to one side @param {boolean} past whether only earlier positions are seen */
function maskOf(reach, past) {
  if (reach !== null) return { name: "window", parameters: { left: reach, right: past ? 0 : reach } };
  return past ? { name: "causal" } : NONE;
}

/**
 * Encode a text.
 * @param {Network} net @param {Encoder} how @param {number[]} ids @param {Choose} choose
 * @returns {{ states: Float32Array, last: Float32Array, layers: Layer[] }} (S, M); the last states of cells; attentions
 */
export function encoded(net, { embedding, stack, cells, residual, norm: end }, ids, choose) {
  const x = embedded(net, embedding, ids, 0);
  if (cells) {
    const { states, last } = bidirectional(net, cells.name, cells, x);
    return { states: norm(net, end, residual ? sum(states, x) : states), last, layers: [] };
  }
  if (!stack) return { states: norm(net, end, x), last: x, layers: [] };
  const layers = Array.from({ length: stack.blocks }, (_, l) =>
    attending(net, `${stack.name}.${l}.self_attention.attention`, maskOf(stack.window, false), choose, ["source", "source"]),
  );
  const states = norm(net, end, layers.reduce((y, layer, l) => block(net, `${stack.name}.${l}`, y, stack, layer), x));
  return { states, last: meanOf(states, ids.length), layers };
}

/** @param {Float32Array} states @param {number} rows @returns {Float32Array} */
function meanOf(states, rows) {
  const mean = new Float32Array(states.length / rows);
  for (const row of rowsOf(states, rows)) row.forEach((value, d) => (mean[d] += value / rows));
  return mean;
}

/**
 * A decoder of blocks, with a source or without.
 * @param {Network} net @param {Parts} parts @param {Choose} choose @param {Float32Array} [memory] (S, M)
 * @param {number} [count] S @returns {Reading}
 */
function blocks(net, { embedding, stack, norm: end }, choose, memory, count = 0) {
  if (!stack) throw new Error("A decoder needs layers.");
  const pairs = Array.from({ length: stack.blocks }, (_, l) => {
    const own = attending(net, `${stack.name}.${l}.self_attention.attention`, maskOf(stack.window, true), choose, memory ? ["target", "target"] : undefined);
    if (!memory) return [own];
    const over = attending(net, `${stack.name}.${l}.cross_attention.attention`, NONE, choose, ACROSS);
    remember(net, over, memory, memory, count);
    return [own, over];
  });
  let start = 0;
  const step = (/** @type {number[]} */ ids) => {
    let x = embedded(net, embedding, ids, start);
    start += ids.length;
    pairs.forEach(([own, over], l) => {
      x = block(net, `${stack.name}.${l}`, x, stack, own, over);
    });
    return linear(net, "output", norm(net, end, x));
  };
  return { layers: pairs.flat(), step };
}

/**
 * A recurrent language model.
 * @param {Network} net @param {Parts} parts @param {Choose} choose @returns {Reading}
 */
function states(net, { embedding, cells, norm: end }, choose) {
  if (!cells) throw new Error("A decoder needs cells.");
  const width = net.tensors["embed.weight"].columns;
  const own = cells.attention === null ? null : attending(net, cells.attention, maskOf(cells.window, true), choose);
  const run = stacked(net, cells, new Float32Array(width));
  const step = (/** @type {number[]} */ ids) => {
    const inputs = linear(net, "from_embedding", embedded(net, embedding, ids, 0));
    const s = beside(...rowsOf(inputs, ids.length).map((row) => run(row)));
    const h = own ? sum(s, selfAttention(net, own, s, ids.length)) : s;
    return linear(net, "output", norm(net, end, h));
  };
  return { layers: own ? [own] : [], step };
}

/**
 * The cells of a decoder, layer above layer.
 * @param {Network} net @param {Decoder} how @param {Float32Array} first the visible state that all of them start with
 * @returns {(x: Float32Array) => Float32Array} from W x + b of the lowest to the visible state of the highest
 */
function stacked(net, { cell, layers }, first) {
  const hidden = Array.from({ length: layers }, () => hiddenOf(cell, first));
  return (x) => {
    let inputs = x;
    for (let depth = 0; depth < layers; depth++) {
      const name = depth === 0 ? "from_hidden" : `above.${depth - 1}.from_hidden`;
      if (depth > 0) inputs = linear(net, `above.${depth - 1}.from_below`, hidden[depth - 1][0]);
      hidden[depth] = cellStep(cell, inputs, linear(net, name, hidden[depth][0]), hidden[depth]);
    }
    return hidden[layers - 1][0];
  };
}

/**
 * A recurrent decoder that attends to a source in every step.
 * @param {Network} net @param {Parts} parts @param {Choose} choose
 * @param {{ states: Float32Array, last: Float32Array }} source @param {number} count of its tokens @returns {Reading}
 */
function decoder(net, { embedding, cells }, choose, source, count) {
  if (!cells) throw new Error("A decoder needs cells.");
  const rows = rowsOf(source.states, count);
  const keys = beside(...rows.map((row) => half(row, cells, 0)));
  const values = beside(...rows.map((row) => half(row, cells, 1)));
  const layer = cells.attention === null ? null : attending(net, cells.attention, NONE, choose, ACROSS);
  const multihead = cells.attention === "multihead.attention";
  if (layer && multihead) remember(net, layer, keys, values, count);
  else if (layer) {
    const compared = cells.narrow ? linear(net, "narrow", keys) : keys;
    add(layer.keys, compared, compared.length / count, layer.own.project.key);
    add(layer.values, values, values.length / count);
  }
  const attend = (/** @type {Float32Array} */ s) => {
    if (!layer) return source.last;
    if (multihead) return crossAttention(net, layer, s, 1);
    add(layer.queries, s, s.length, layer.own.project.query);
    return joined(layer, layer.inputs.push(s) - 1, 1);
  };
  let s = linear(net, "bridge", source.last).map(Math.tanh);
  const run = stacked(net, cells, s);
  const step = (/** @type {number[]} */ ids) => {
    const embeddings = rowsOf(embedded(net, embedding, ids, 0), ids.length);
    const logits = embeddings.map((y) => {
      const inputs = linear(net, "from_embedding", y);
      const before = cells.wiring === "bahdanau";
      let context = before ? attend(s) : source.last;
      const more = before ? linear(net, "from_context", context) : null;
      s = run(more ? sum(inputs, more) : inputs);
      if (!before) context = attend(s);
      return linear(net, "output", linear(net, "readout", beside(s, context, y)).map(Math.tanh));
    });
    return beside(...logits);
  };
  return { layers: layer ? [layer] : [], step };
}

/** @param {Float32Array} row a state @param {Decoder} cells @param {number} which 0 for the key, 1 for the value */
function half(row, { split, directions }, which) {
  if (!split) return row;
  const parts = rowsOf(row, 2 * directions);
  return beside(...parts.filter((_, at) => at % 2 === which));
}

/**
 * Label a text.
 * @param {Network} net @param {Parts} parts @param {number[]} ids @param {Choose} choose
 * @returns {{ layers: Layer[], logits: Float32Array }}
 */
export function classified(net, { encoder, pool }, ids, choose) {
  const { states, layers } = encoded(net, encoder, ids, choose);
  if (pool === null) return { layers, logits: linear(net, "output", meanOf(states, ids.length)) };
  const layer = attending(net, pool, NONE, choose, ACROSS);
  const width = states.length / ids.length;
  const query = net.tensors["pool.query"]?.values ?? new Float32Array(width);
  layer.inputs.push(query);
  add(layer.queries, query, width, layer.own.project.query);
  add(layer.keys, net.tensors["pool.key.weight"] ? linear(net, "pool.key", states) : states, width, layer.own.project.key);
  add(layer.values, states, width);
  return { layers: [...layers, layer], logits: linear(net, "output", joined(layer, 0, 1)) };
}

/** @param {Float32Array} logits @param {number[]} never @returns {number} the likeliest id, the lowest of equal ones */
export function likeliest(logits, never) {
  let best = -1;
  for (let id = 0; id < logits.length; id++)
    if ((best < 0 || logits[id] > logits[best]) && !never.includes(id)) best = id;
  return best;
}

/** @param {Parts["limit"]} limit @param {number} count of the tokens of the source @returns {number} of its translation */
export function longest({ each, more, longest: trained }, count) {
  const target = trained.filter(([source]) => source <= count).at(-1)?.[1] ?? 0;
  return Math.max(each * count + more, target ? target + more : 0);
}

/** @param {Network} net @param {Parts} parts @param {number[]} source @param {Choose} choose @returns {Reading} */
export function reading(net, parts, source, choose) {
  if (parts.task === "generate") return parts.cells ? states(net, parts, choose) : blocks(net, parts, choose);
  const found = encoded(net, parts.encoder, source, choose);
  const next = parts.cells ? decoder(net, parts, choose, found, source.length) : blocks(net, parts, choose, found.states, source.length);
  return { layers: [...found.layers, ...next.layers], step: next.step };
}

/**
 * Translate greedily.
 * @param {Network} net @param {Parts} parts @param {number[]} source @param {Choose} choose
 * @param {boolean} again whether every step computes all positions anew, as a mask that hides no later ones needs
 * @returns {Reading & { ids: number[], finished: boolean, logits: Float32Array[] }}
 */
export function translated(net, parts, source, choose, again = false) {
  const { bos, eos, never } = parts.marks;
  const most = longest(parts.limit, source.length);
  const ids = /** @type {number[]} */ ([]);
  const logits = /** @type {Float32Array[]} */ ([]);
  let now = reading(net, parts, source, choose);
  while (ids.length < most) {
    if (again) now = reading(net, parts, source, choose);
    const scores = rowsOf(now.step(again ? [bos, ...ids] : [ids.at(-1) ?? bos]), again ? ids.length + 1 : 1);
    logits.push(scores[scores.length - 1]);
    const best = likeliest(logits[logits.length - 1], never);
    if (best === eos) return { ...now, ids, finished: true, logits };
    ids.push(best);
  }
  return { ...now, ids, finished: false, logits };
}

/** @param {Float32Array} logits @returns {Float64Array} */
export function probabilities(logits) {
  let top = Number.NEGATIVE_INFINITY;
  for (let id = 0; id < logits.length; id++) if (logits[id] > top) top = logits[id];
  const shares = new Float64Array(logits.length);
  let total = 0;
  for (let id = 0; id < logits.length; id++) {
    shares[id] = Math.exp(logits[id] - top);
    total += shares[id];
  }
  for (let id = 0; id < logits.length; id++) shares[id] /= total;
  return shares;
}
