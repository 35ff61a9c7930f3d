// A model of a page, its texts and its answers, without the page.

import { drawn, keyOf, uniform } from "./drawing.js";
import { classified, likeliest, probabilities, reading, translated } from "./models.js";
import { inflated, placed, unpacked } from "./network.js";
import { tokenizer } from "./texts.js";

/** @typedef {import("./network.js").Choose} Choose */
/** @typedef {{ choose?: Choose, temperature?: number, tokens?: number, seed?: number }} Wanted */

/**
 * Unpack a model.
 * @param {any} data as `qkv.view.live` writes it
 */
export async function model(data) {
  const tensors = unpacked(data.network.tensors, await inflated(data.bytes));
  const net = { tensors, attentions: placed(data.network.attentions, tensors) };
  const source = tokenizer(data.tokenizers.source);
  return { ...data, net, source, target: data.tokenizers.target ? tokenizer(data.tokenizers.target) : source };
}

/**
 * Run a model on a text.
 * @param {any} model @param {string} text @param {Wanted} [wanted]
 * @returns {import("./computed.js").Run & { ids: number[], chances: number[], finished: boolean }}
 */
export function run(model, text, { choose = () => undefined, temperature = 0, tokens = 40, seed = 0 } = {}) {
  const { parts, longest, source } = model;
  const ids = source.encode(text);
  if (ids.length === 0) throw new Error("Type a text.");
  if (ids.length > longest) throw new Error(`The model reads up to ${longest} tokens; this text has ${ids.length}.`);
  const all = { ...model, text, given: ids, choose };
  if (parts.task === "classify") return labeled(all);
  return parts.task === "translate" ? translation(all) : continuation(all, temperature, tokens, seed);
}

/** Two choices for a head as one: what is asked of it now, within what is changed anyway. */
const within = (/** @type {Choose} */ choose, /** @type {Choose} */ change) => (/** @type {string} */ name, /** @type {number} */ head) => {
  const [usual, more] = [choose(name, head), change(name, head)];
  return usual || more ? { ...usual, ...more } : undefined;
};

/** @param {any} model @param {import("./network.js").Layer[]} layers */
function opening({ opening: [name, head] }, layers) {
  return { layer: Math.max(0, layers.findIndex((layer) => layer.name === name)), head };
}

/** Whether a change hides other keys: then positions that were read see others than before. */
const masks = (/** @type {any} */ { network }, /** @type {Choose} */ choose) =>
  Object.entries(network.attentions).some(([name, { heads }]) => Array.from({ length: heads }, (_, h) => choose(name, h)).some((change) => change?.mask));

/** @param {any} model */
function translation(model) {
  const { net, parts, target, source, text, given, choose } = model;
  const { bos, eos } = parts.marks;
  const found = translated(net, parts, given, choose, masks(model, choose));
  const end = found.finished ? "<eos>" : "…";
  if (!found.finished) found.step([found.ids.at(-1) ?? bos]); // what the last token attends to
  const pieces = [...found.ids.map(target.piece), end];
  const name = (/** @type {number} */ id) => (id === eos ? "<eos>" : target.decode([id]) || target.piece(id));
  const answer = (/** @type {Choose} */ change = () => undefined) => {
    const both = within(choose, change);
    const again = reading(net, parts, given, both);
    const logits = again.step([bos, ...found.ids]);
    const rows = pieces.map((_, t) => probabilities(logits.subarray((t * logits.length) / pieces.length, ((t + 1) * logits.length) / pieces.length)));
    const words = translated(net, parts, given, both, masks(model, both)).ids;
    return { text: target.decode(words), labels: pieces, rows, name };
  };
  const written = target.decode(found.ids);
  const chances = found.ids.map((id, t) => probabilities(found.logits[t])[id]);
  return {
    ...{ layers: found.layers, written, title: text, answer, ids: found.ids, chances, finished: found.finished },
    sequences: { source: given.map(source.piece), target: pieces },
    opening: opening(model, found.layers),
  };
}

/** @param {any} model @param {number} temperature 0 for the likeliest tokens @param {number} tokens @param {number} seed */
function continuation(model, temperature, tokens, seed) {
  const { net, parts, source, text, given, choose, longest } = model;
  const now = reading(net, parts, given, choose);
  const { never } = parts.marks;
  const key = keyOf(given);
  const size = net.tensors["embed.weight"].rows;
  const [ids, chances] = [[...given], /** @type {number[]} */ ([])];
  const last = (/** @type {Float32Array} */ logits) => logits.subarray(logits.length - size);
  let logits = last(now.step(given));
  while (ids.length < Math.min(given.length + tokens, longest)) {
    const step = ids.length - given.length;
    const id = temperature === 0 ? likeliest(logits, never) : drawn(logits, never, temperature, uniform(seed, key, step));
    chances.push(probabilities(logits)[id]);
    ids.push(id);
    logits = last(now.step([id]));
  }
  const pieces = ids.map(source.piece);
  const answer = (/** @type {Choose} */ change = () => undefined) => {
    const all = reading(net, parts, given, within(choose, change)).step(ids);
    const rows = ids.map((_, i) => probabilities(all.subarray(i * size, (i + 1) * size)));
    const best = rows[rows.length - 1].reduce((most, p, id, shares) => (p > shares[most] ? id : most), 0);
    const labels = pieces.map((/** @type {string} */ piece) => `after ${piece}`);
    return { text: source.piece(best), labels, rows, name: source.piece };
  };
  const written = source.decode(ids).slice(source.decode(given).length);
  return {
    ...{ layers: now.layers, written, title: text, answer, ids: ids.slice(given.length), chances, finished: true },
    sequences: { text: pieces },
    opening: opening(model, now.layers),
  };
}

/** @param {any} model */
function labeled(model) {
  const { net, parts, source, text, given, choose, labels } = model;
  const { layers, logits } = classified(net, parts, given, choose);
  const shares = probabilities(logits);
  const best = likeliest(logits, []);
  const name = (/** @type {number} */ id) => labels[id];
  const answer = (/** @type {Choose} */ change = () => undefined) => {
    const found = classified(net, parts, given, within(choose, change)).logits;
    return { text: name(likeliest(found, [])), labels: ["label"], rows: [probabilities(found)], name };
  };
  return {
    ...{ layers, written: name(best), title: text, answer, ids: [best], chances: Array.from(shares), finished: true },
    sequences: { source: given.map(source.piece), target: [name(best)] },
    opening: opening(model, layers),
  };
}
