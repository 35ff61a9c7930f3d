// Answers computed in the page, of a model that ran there or of layers that were recorded.

import { NORMALIZERS, SCORES } from "./formulas.js";
import { attended, joined, linear, mechanism, rowOf, weighted } from "./network.js";
import { apart, dot } from "./numeric.js";
import { digits } from "./numbers.js";
import { tokens } from "./texts.js";

/** @typedef {import("./network.js").Layer} Layer */
/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Change} Change */
/** @typedef {{ text: string, labels: string[], rows: Float64Array[], name: (id: number) => string }} Answer */
/**
 * @typedef {object} Run what a model did with a text
 * @property {(Layer | null)[]} layers null for one that a page does not hold
 * @property {Record<string, string[]>} sequences pieces @property {string} written
 * @property {string} title @property {{ layer: number, head: number | null }} opening
 * @property {(change?: (layer: string, head: number) => Change | undefined) => Answer} [answer] with changes of heads
 * @property {Record<string, import("./texts.js").Token[]>} [tokens] in place of the pieces
 * @property {Record<string, any>} [given] answers by path, in place of computed ones
 */

const [SIDE, SMALL, VERSION, TERMS, DISPLAYED] = [256, 32, 2, 3, 64];
const LONGEST = 2048; // tokens of a text whose rollout is computed
const [MATRICES, PAUSE] = [8, 30]; // kept; milliseconds of computing before the page may draw
const THRESHOLDS = { diagonal: 0.4, next: 0.4, previous: 0.4, local: 0.6, first: 0.4, separator: 0.4, same: 0.4, broad: 0.8 };
const SEPARATOR = /^(?:[^\p{L}\p{N}_\s]{1,3}|\[[A-Z]+\]|<\/?[\p{L}\p{N}_|]+>|<\|[^|]*\|>)$/u;

/** @param {Float64Array} w @returns {number} in nats */
const entropy = (w) => w.reduce((sum, value) => sum - (value > 0 ? value * Math.log(value) : 0), 0);
/** @param {ArrayLike<number>} values @returns {number[]} */
const list = (values) => Array.from(values);

/** @param {ArrayLike<number>} values @param {number} top @returns {number[]} the places of the largest */
function largest(values, top) {
  return Array.from(values, (_, at) => at)
    .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]))
    .slice(0, top);
}

/** @param {Layer} layer @returns {[number, number]} queries and keys */
function sizes({ shape, queries, keys }) {
  return shape ?? [queries[0].length, keys[0].length];
}

/** @param {Layer | null} layer @returns {Layer} one of which more than weights is known */
function whole(layer) {
  if (!layer || layer.tables) throw new Error(`This saved page ${layer ? "holds only the weights" : "holds nothing"} of this layer: a larger page holds more, and the running viewer, \`qkv view\`, has all.`);
  return layer;
}

/** @param {Layer | null} layer @returns {Layer} one of which something is known */
function known(layer) {
  return layer ?? whole(layer);
}

/** @param {Layer | null} layer @param {number} head @param {number} i @returns {import("./numeric.js").Vector} its weights */
function rowOfHead(layer, head, i) {
  if (layer?.tables && layer.level === 0) return layer.tables[head][i];
  const { rows } = whole(layer);
  return (rows[head][i] ? rowOf(whole(layer), head, i) : weighted(whole(layer), head, i)).weights;
}

/** @param {Layer} layer @param {number | null} head null for the mean @param {number} i @returns {Float64Array} weights */
function weightsOf(layer, head, i) {
  const heads = head === null ? Array.from({ length: layer.own.heads }, (_, h) => h) : [head];
  const mean = new Float64Array(sizes(layer)[1]);
  for (const h of heads) {
    const row = rowOfHead(layer, h, i);
    for (let j = 0; j < mean.length; j++) mean[j] += row[j] / heads.length;
  }
  return mean;
}

/** @param {Layer} layer @param {number} head @returns {import("./numeric.js").Vector[]} */
function valuesOf(layer, head) {
  return layer.values[Math.floor((head * layer.own.groups) / layer.own.heads)];
}

/**
 * The norm of each value after the output projection: the contribution of a weight of one.
 * @param {Network} net @param {Layer} layer @param {number} head @returns {number[]}
 */
function contributions({ tensors }, layer, head) {
  if (layer.norms) return list(layer.norms[head]);
  const weight = tensors[`${layer.name.replace(/\.attention$/, "")}.output.weight`];
  return valuesOf(layer, head).map((value) => {
    if (!weight) return Math.sqrt(dot(value, value));
    let square = 0;
    for (let o = 0, at = head * value.length; o < weight.rows; o++, at += weight.columns)
      square += dot(weight.values.subarray(at, at + value.length), value) ** 2;
    return Math.sqrt(square);
  });
}

/**
 * A matrix pooled to a level: the mean or the maximum of blocks.
 * @param {number[]} size @param {number} level @param {boolean} max @param {(i: number, j: number) => number} at
 * @param {number} row the tile @param {number} column
 */
function tile([rows, columns], level, max, at, row, column) {
  const block = 2 ** level;
  const [tall, wide] = [rows, columns].map((size) => Math.ceil(size / block));
  const [from, left] = [row * SIDE, column * SIDE];
  const [height, width] = [Math.min(SIDE, tall - from), Math.min(SIDE, wide - left)];
  const values = new Float32Array(height * width);
  for (let r = 0; r < height; r++)
    for (let c = 0; c < width; c++) {
      let [sum, most, count] = [0, Number.NEGATIVE_INFINITY, 0];
      for (let i = (from + r) * block; i < Math.min(rows, (from + r + 1) * block); i++)
        for (let j = (left + c) * block; j < Math.min(columns, (left + c + 1) * block); j++, count++) {
          sum += at(i, j);
          most = Math.max(most, at(i, j));
        }
      values[r * width + c] = max ? most : sum / count;
    }
  return grid(height, width, values);
}

/** @param {number} rows @param {number} columns @param {Float32Array} values */
function grid(rows, columns, values) {
  const [low, high] = [Math.min, Math.max].map((f) => values.reduce((end, value) => f(end, value), values[0] ?? 0));
  return { rows, columns, values, low, high };
}

/** @param {string} path @returns {{ name: string, given: any }} a request and its parameters */
function parsed(path) {
  const [name, query = ""] = path.replace(/^api\//, "").split("?");
  const number = (/** @type {string} */ text) => (text === "mean" ? null : /^\d+$/.test(text) ? Number(text) : text);
  return { name, given: Object.fromEntries(Array.from(new URLSearchParams(query), ([key, text]) => [key, number(text)])) };
}

/** @param {Network} net @param {Run} run @returns {import("./answers.js").Source} */
export function computed(net, run) {
  const { layers } = run;
  const names = Object.keys(run.tokens ?? run.sequences);
  const listed = run.tokens ?? Object.fromEntries(names.map((name) => [name, tokens(run.sequences[name])]));
  const pooled = new Map();
  /** @param {number} l @param {number | null} head @param {string} quantity */
  const made = async (l, head, quantity) => {
    if (quantity.startsWith("gradient")) throw new Error("This page has no gradients: the viewer of a run, `qkv view RUN`, shows gradient × attention.");
    return quantity === "rollout" ? rolledOut(layers, l) : matrixOf(net, layers[l], head, quantity === "contribution");
  };
  const matrix = (/** @type {number} */ l, /** @type {number | null} */ head, /** @type {string} */ quantity) => {
    const key = `${l} ${head} ${quantity}`;
    const cached = pooled.get(key) ?? made(l, head, quantity);
    pooled.delete(key);
    pooled.set(key, cached); // the last used is the last to go
    for (const oldest of pooled.keys()) if (pooled.size > MATRICES) pooled.delete(oldest);
    return cached;
  };
  /** @type {Answer | null} */
  let before = null;
  /** @type {Record<string, (given: any) => any>} */
  const answers = {
    scene: () => ({
      ...{ title: run.title, written: run.written, version: VERSION, answers: true, opening: run.opening },
      sequences: names.map((name) => ({ name, length: listed[name].length, tokens: listed[name] })),
      layers: layers.map((layer) => described(layer, names)),
      not_finite: null,
    }),
    progress: () => ({ done: 1, state: "exact", levels: 1 }),
    steps: ({ layer, head, query }) => ({ stages: stages(net, whole(layers[layer]), head, query, listed) }),
    cell: ({ layer, head, query, key }) => cell(known(layers[layer]), head, query, key),
    heads: () => layers.flatMap((layer, l) => layer.queries.map((_, head) => shares(layer, l, head, listed))),
    graph: ({ layers: chain, query, top, frontier }) => graph(String(chain).split(",").map((l) => known(layers[Number(l)])), query, top, frontier),
    mechanisms: ({ layer, head }) => mechanisms(whole(layers[layer]), head),
  };
  const sides = (/** @type {any} */ body) => {
    const { layer, head, query, ...change } = body;
    const row = rowOf(whole(layers[layer]), head, query);
    const own = layers[layer].choose(layers[layer].name, head) ?? {};
    const side = ({ weights, output }) => ({ weights: list(weights), output: list(output), rest: 0, sum: rest(weights, []) });
    const places = list(row.weights.keys());
    try {
      const after = side(attended(layers[layer], head, query, { ...own, ...change }));
      return { places, length: places.length, before: side(row), after };
    } catch (error) {
      return { places, length: places.length, before: side(row), after: side(row), error: /** @type {Error} */ (error).message };
    }
  };
  const rerun = (/** @type {any} */ { layer, head, scope, output, ...change }) => {
    before ??= run.answer();
    const after = run.answer((name, h) => {
      if (scope !== "model" && name !== layers[layer].name) return undefined;
      if (scope === "head" && h !== head) return undefined;
      if (output === "zero") return { output: 0 };
      const found = layers.find((one) => one.name === name);
      return output === "mean" && found ? { output: meanOutput(found, h) } : change;
    });
    return moved(before, after);
  };
  return {
    json: async (path) => {
      const { name, given } = parsed(path);
      return run.given?.[path] ?? answers[name](given);
    },
    post: async (path, body) => (path === "api/whatif" ? sides(body) : path === "api/rerun" ? rerun(body) : {}),
    grid: async (path) => {
      const { name, given } = parsed(path);
      const { size, at, exact, coarse } = await matrix(given.layer, given.head, given.quantity ?? "weight");
      if (name === "tile") return { ...tile(size, given.level, given.how === "max", at, given.row, given.column), state: exact ? "exact" : "sampled" };
      if (coarse && given.what !== "received") return { ...grid(1, 0, new Float32Array()), state: "exact" }; // means of blocks have other ones
      const track = tracked(size, at, given.what);
      const block = 2 ** given.level;
      const values = Array.from({ length: Math.ceil(track.length / block) }, (_, cell) => {
        const part = track.slice(cell * block, (cell + 1) * block);
        return given.what === "peak" ? Math.max(...part) : rest(part, []) / part.length;
      });
      return { ...grid(1, values.length, Float32Array.from(values)), state: "exact" };
    },
  };
}

/** @param {ArrayLike<number>} w @param {number[]} without @returns {number} the sum of all others */
function rest(w, without) {
  return list(w).reduce((sum, value, at) => sum + (without.includes(at) ? 0 : value), 0);
}

/**
 * All weights of a head, computed with pauses in which the page can draw.
 * @param {Network} net @param {Layer} layer @param {number | null} head @param {boolean} contribution
 */
async function matrixOf(net, layer, head, contribution) {
  const size = sizes(known(layer));
  const heads = head === null ? Array.from({ length: layer.own.heads }, (_, h) => h) : [head];
  const { tables, level = 0, exact = true } = layer;
  if (tables && level > 0) {
    if (contribution) whole(layer);
    const at = (/** @type {number} */ i, /** @type {number} */ j) => heads.reduce((sum, h) => sum + tables[h][i >> level][j >> level], 0) / heads.length;
    return { size, at, exact, coarse: true };
  }
  const long = heads.map((h) => (contribution ? contributions(net, layer, h) : null));
  const values = new Float32Array(size[0] * size[1]);
  let began = performance.now();
  for (let i = 0; i < size[0]; i++) {
    heads.forEach((h, place) => {
      const row = rowOfHead(layer, h, i);
      const factors = long[place];
      for (let j = 0; j < size[1]; j++) values[i * size[1] + j] += (row[j] * (factors ? factors[j] : 1)) / heads.length;
    });
    if (performance.now() - began < PAUSE) continue;
    await new Promise((done) => setTimeout(done));
    began = performance.now();
  }
  return { size, at: (/** @type {number} */ i, /** @type {number} */ j) => values[i * size[1] + j], exact, coarse: false };
}

/**
 * How much of each input token is in each token that a layer gives, as `qkv.view.answers.attribution` computes it.
 * @param {(Layer | null)[]} layers @param {number} number
 */
async function rolledOut(layers, number) {
  const layer = known(layers[number]);
  const [rows, columns] = sizes(layer);
  if (Math.max(rows, columns) > LONGEST) throw new Error(`Rollout is for texts of at most ${LONGEST} tokens.`);
  const crosses = layer.own.kind === "cross";
  const below = (crosses ? layers : layers.slice(0, number + 1)).filter((one) => !one || (one.own.kind === "self" && one.sides[1] === layer.sides[1])).map(known);
  let reached = Array.from({ length: columns }, (_, i) => Float64Array.from({ length: columns }, (_, j) => (i === j ? 1 : 0)));
  for (const one of crosses ? [...below, layer] : below) {
    const before = reached;
    reached = [];
    for (let i = 0; i < sizes(one)[0]; i++) {
      const row = new Float64Array(columns);
      const share = one === layer && crosses ? 1 : 0.5; // the other half is the residual stream
      weightsOf(one, null, i).forEach((w, k) => {
        if (w < 0) throw new Error("Weights of this layer can be negative: use the weights instead.");
        if (w !== 0) for (let j = 0; j < columns; j++) row[j] += share * w * before[k][j];
      });
      if (share < 1) for (let j = 0; j < columns; j++) row[j] += (1 - share) * before[i][j];
      reached.push(row);
      if (i % 16 === 15) await new Promise((done) => setTimeout(done));
    }
  }
  return { size: [rows, columns], at: (/** @type {number} */ i, /** @type {number} */ j) => reached[i][j], exact: true, coarse: false };
}

/** @param {number[]} size @param {(i: number, j: number) => number} at @param {string} what @returns {number[]} */
function tracked([rows, columns], at, what) {
  const row = (/** @type {number} */ i) => Float64Array.from({ length: columns }, (_, j) => at(i, j));
  if (what !== "received") return Array.from({ length: rows }, (_, i) => (what === "peak" ? row(i).reduce((most, w) => Math.max(most, w)) : entropy(row(i))));
  return Array.from({ length: columns }, (_, j) => rest(Array.from({ length: rows }, (_, i) => at(i, j)), []));
}

/** @param {Layer} layer @param {string[]} names of the sequences */
function described(layer, names) {
  const { name, own } = layer;
  const [rows, columns] = sizes(layer);
  const levels = 1 + Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns, 1) / SIDE)));
  const { score, normalizer } = mechanism(layer, 0, layer.choose(name, 0));
  const changed = `s = ${score.entry.equation}; w = ${normalizer.entry.equation}; o = Σ w v`;
  const equation = score.name === own.score.name && normalizer.name === own.normalizer.name ? own.equation : changed;
  return {
    ...{ name, short: own.short, kind: own.kind, heads: own.heads, rows, columns, levels, equation },
    ...{ queries: names.indexOf(layer.sides[0]), keys: names.indexOf(layer.sides[1]) },
    ...{ score: score.name, normalizer: normalizer.name, mask: layer.mask.name, has_inputs: true, has_output: true },
    value_width: layer.values[0][0].length,
  };
}

/**
 * The steps from a query and the keys that it sees to their weights: of each step a number for every key, or one for all.
 * @param {Layer} layer @param {number} head @param {number} i
 */
function weighing(layer, head, i) {
  const { query, visible, scores, weights } = rowOf(layer, head, i);
  const { score, normalizer } = mechanism(layer, head, layer.choose(layer.name, head));
  const all = layer.keys[Math.floor((head * layer.own.groups) / layer.own.heads)];
  const keys = visible.map((j) => all[j]);
  const unchanged = score.name === layer.own.score.name && normalizer.name === layer.own.normalizer.name;
  const equations = unchanged ? layer.own.equation.split("; ") : [`s = ${score.entry.equation}`, `w = ${normalizer.entry.equation}`];
  const steps = /** @type {{ name: string, symbol: string, equation: string, values: number[], filled: (at: number) => string }[]} */ ([]);
  const step = (name, symbol, equation, values, filled = (_) => "[") => steps.push({ name, symbol, equation, values: list(values), filled });
  if (["dot", "scaled_dot"].includes(score.name)) step("product", "q·k", "q·k", keys.map((key) => dot(query, key)), (at) => product(query, keys[at]));
  if (score.p.bandwidth !== undefined) step("squared distance", "‖q−k‖²", "‖q−k‖²", keys.map((key) => apart(query, key)));
  if (score.name !== "dot") step("score", "s", equations[0], scores);
  if (normalizer.name === "softmax" && visible.length > 0) {
    const top = Math.max(...scores);
    const powers = scores.map((s) => Math.exp(s - top));
    step("maximum", "m", "m = max s", [top]);
    step("exponentials", "e", "e = exp(s − m)", powers, (at) => `exp(${digits(scores[at])} − ${bracketed(top)})`);
    step("sum", "Z", "Z = Σ e", [rest(powers, [])]);
  }
  step("weights", "w", equations[1], visible.map((j) => weights[j]));
  return steps;
}

/** @param {number} x @returns {string} */
const bracketed = (x) => (x < 0 ? `(${digits(x)})` : digits(x));

/** @param {import("./numeric.js").Vector} a @param {import("./numeric.js").Vector} b @returns {string} the first terms of a·b */
function product(a, b) {
  const terms = list(a).slice(0, TERMS).map((x, d) => `${digits(x)}·${bracketed(b[d])}`);
  return terms.join(" + ") + (a.length > TERMS ? ` + … (${a.length - TERMS} more)` : "");
}

/**
 * The computation of one query, step by step; of many keys, those with the largest weights.
 * @param {Network} net @param {Layer} layer @param {number} head @param {number} i
 * @param {Record<string, import("./texts.js").Token[]>} listed
 */
function stages(net, layer, head, i, listed) {
  const { query, visible, weights, output } = rowOf(layer, head, i);
  const group = Math.floor((head * layer.own.groups) / layer.own.heads);
  const [count, values] = [weights.length, layer.values[group]];
  const places = largest(weights, DISPLAYED).sort((a, b) => a - b);
  const names = listed[layer.sides[1]];
  const labels = places.map((j) => names[j]?.shown ?? String(j));
  const few = places.length < count ? `The ${places.length} keys with the largest weights, of ${count}.` : "";
  const vector = (name, symbol, equation, numbers, note = "") =>
    ({ name, symbol, equation, kind: "vector", values: list(numbers), note, labels: list(numbers).map((_, at) => String(at + 1)) });
  const table = (name, symbol, rows, more = []) =>
    ({ name, symbol, equation: symbol, kind: "matrix", values: rows.flatMap(list), shape: [rows.length, rows[0]?.length ?? 0], labels: [...labels, ...more], note: few });
  const spread = (/** @type {number[]} */ numbers) => {
    const of = new Map(visible.map((j, at) => [j, numbers[at]]));
    return places.map((j) => of.get(j) ?? null);
  };
  const hidden = visible.length < count ? `${visible.length} of ${count} keys are visible to this query.` : "";
  const steps = weighing(layer, head, i).map(({ name, symbol, equation, values }) => {
    if (["m", "Z"].includes(symbol)) return { name, symbol, equation, kind: "number", values, labels: [""], note: "" };
    const ends = symbol === "w" ? { scale: "weight", values: places.map((j) => weights[j]) } : { values: spread(values) };
    return { name, symbol, equation, kind: "row", labels, note: [symbol === "s" ? hidden : "", few].join(" ").trim(), ...ends };
  });
  const weightedValues = places.map((j) => list(values[j]).map((x) => weights[j] * x));
  const others = list(output).map((x, d) => x - weightedValues.reduce((sum, value) => sum + value[d], 0));
  const { output: replaced } = layer.choose(layer.name, head) ?? {};
  const name = `${layer.name.replace(/\.attention$/, "")}.output`;
  const projects = Boolean(layer.outputs ?? net.tensors[`${name}.weight`]);
  const joins = layer.own.heads > 1 || projects;
  const heads = joins ? joined(layer, i, 1) : new Float32Array(0);
  return [
    ...(layer.inputs[i] ? [vector("input", "x", "x", layer.inputs[i])] : []),
    vector("query", "q", "q", query),
    table("keys", "k", places.map((j) => layer.keys[group][j])),
    table("values", "v", places.map((j) => values[j])),
    ...steps,
    few ? table("weighted values", "w v", [...weightedValues, others], ["all others"]) : table("weighted values", "w v", weightedValues),
    vector("sum", "o", "o = Σ w v", output, replaced === undefined ? "" : "Another output takes its place: see the heads above."),
    ...(joins ? [vector("concatenated heads", "[o₁ … o_H]", "[o₁; …; o_H]", heads)] : []),
    ...(projects ? [vector("output projection", "y", "y = W [o₁; …; o_H] + b", layer.outputs?.[i] ?? linear(net, name, heads))] : []),
  ];
}

/** @param {Layer} layer @param {number | null} head @param {number} i @param {number} j */
function cell(layer, head, i, j) {
  if (head === null) {
    const weights = Array.from({ length: layer.own.heads }, (_, h) => rowOfHead(layer, h, i)[j]);
    const lines = weights.map((value, h) => ({ equation: `w of head ${h}`, filled: "[", value }));
    return { lines, weight: rest(weights, []) / weights.length };
  }
  const weight = rowOfHead(layer, head, i)[j];
  if (layer.tables) return { lines: [{ equation: "w", filled: "[", value: weight }], weight };
  const at = rowOf(layer, head, i).visible.indexOf(j);
  if (at < 0) return { lines: [{ equation: "w = 0", filled: "the mask hides this key from this query", value: 0 }], weight: 0 };
  const lines = weighing(layer, head, i).map(({ equation, values, filled }) => ({ equation, filled: filled(at), value: values[at] ?? values[0] }));
  return { lines, weight };
}

/** @param {Layer} layer @param {number} head */
function mechanisms(layer, head) {
  const most = layer.keys[0].length;
  const offered = (/** @type {any} */ catalog) =>
    Object.entries(catalog).flatMap(([name, entry]) => (entry.offered ? [{ name, parameters: entry.numbers }] : []));
  const number = (/** @type {string} */ name, /** @type {number} */ usual, low = 0) => ({ name, default: usual, low, high: most, step: 1 });
  const masks = [
    { name: "none", parameters: [] },
    { name: "causal", parameters: [number("offset", 0, -most)] },
    { name: "window", parameters: [number("left", 8), number("right", 8)] },
    { name: "lengths", parameters: [number("keys", most)] },
  ];
  const { score, normalizer, mask } = mechanism(layer, head, layer.choose(layer.name, head));
  const numbers = (/** @type {any} */ { name, p }) => ({ name, parameters: Object.fromEntries(Object.entries(p).filter(([, x]) => typeof x === "number")) });
  const recorded = { score: numbers(score), normalizer: numbers(normalizer), mask: { name: mask.name, parameters: {} } };
  return { scores: offered(SCORES), normalizers: offered(NORMALIZERS), masks, recorded };
}

/** @param {Layer} layer @param {number} head @returns {Float64Array} the mean of its outputs */
function meanOutput(layer, head) {
  const count = layer.queries[head].length;
  const mean = new Float64Array(layer.values[0][0].length);
  for (let i = 0; i < count; i++) rowOf(layer, head, i).output.forEach((x, d) => (mean[d] += x / count));
  return mean;
}

/** @param {Answer} before @param {Answer} after what moved between two answers about the same rows */
function moved(before, after) {
  const option = (/** @type {number} */ at, /** @type {number} */ row) => ({ name: before.name(at), before: before.rows[row][at], after: after.rows[row][at] });
  const rows = before.rows.map((old, row) => ({
    label: before.labels[row],
    moved: old.reduce((sum, p, at) => sum + Math.abs(after.rows[row][at] - p), 0) / 2,
    before: largest(old, TERMS).map((at) => option(at, row)),
    after: largest(after.rows[row], TERMS).map((at) => option(at, row)),
  }));
  return { before: before.text, after: after.text, rows, omitted: 0 };
}

/** @param {Layer[]} chain bottom to top @param {number} query @param {number} top @param {number} frontier */
function graph(chain, query, top, frontier) {
  let masses = new Map([[query, 1]]);
  const nodes = [{ layer: chain.length, token: query, mass: 1 }];
  /** @type {{ layer: number, from: number, to: number, weight: number }[]} */
  let links = [];
  const discarded = chain.map(() => 0);
  for (let level = chain.length - 1; level >= 0; level--) {
    const reached = new Map();
    let total = 0;
    for (const [token, mass] of masses) {
      const mean = weightsOf(chain[level], null, token);
      if (mean.some((w) => w < 0)) throw new Error("Weights of this layer can be negative: use its map instead.");
      total += mass * rest(mean, []);
      for (const from of largest(mean, top).filter((j) => mean[j] > 0)) {
        links.push({ layer: level, from, to: token, weight: mean[from] });
        reached.set(from, (reached.get(from) ?? 0) + mass * mean[from]);
      }
    }
    masses = new Map([...reached].sort((a, b) => b[1] - a[1]).slice(0, frontier));
    links = links.filter((link) => link.layer !== level || masses.has(link.from));
    discarded[level] = Math.max(0, total - rest([...masses.values()], []));
    for (const [token, mass] of masses) nodes.push({ layer: level, token, mass });
  }
  return { nodes, links, discarded };
}

/**
 * A thumbnail of a head, and where its weights lie, as `qkv.view.answers.shares` measures it.
 * @param {Layer} layer @param {number} l @param {number} head @param {Record<string, import("./texts.js").Token[]>} listed
 */
function shares(layer, l, head, listed) {
  const [rows, columns] = sizes(layer);
  const [queries, keys] = layer.sides.map((name) => listed[name]);
  const within = layer.own.kind === "self";
  const reach = Math.min(8, Math.max(1, Math.floor(columns / 16)));
  const all = Array.from({ length: rows }, (_, i) => rowOf(layer, head, i));
  const mean = (/** @type {(w: number, i: number, j: number) => number} */ part, from = 0) =>
    all.slice(from).reduce((sum, { weights }, at) => sum + weights.reduce((own, w, j) => own + part(w, at + from, j), 0), 0) / Math.max(1, rows - from);
  const where = (/** @type {(i: number, j: number) => boolean} */ test) => (/** @type {number} */ w, /** @type {number} */ i, /** @type {number} */ j) => (test(i, j) ? w : 0);
  const seeing = all.filter(({ visible }) => visible.length > 1);
  const broad = rest(seeing.map(({ weights, visible }) => entropy(weights) / Math.log(visible.length)), []) / Math.max(1, seeing.length);
  const found = {
    diagonal: within ? mean(where((i, j) => i === j)) : correlation(all),
    ...(within
      ? {
          next: mean(where((i, j) => j === i + 1)),
          previous: mean(where((i, j) => j === i - 1), 1),
          local: mean(where((i, j) => Math.abs(i - j) <= reach)),
        }
      : {}),
    first: mean(where((_, j) => j === 0)),
    separator: mean(where((_, j) => SEPARATOR.test(keys[j].text.replace(/^[▁Ġ ]+|[▁Ġ ]+$/gu, "")))),
    same: mean(where((i, j) => queries[i].text === keys[j].text && !(within && i === j))),
    ...(all.some(({ weights }) => weights.some((w) => w < 0)) ? {} : { broad }),
  };
  const labels = Object.entries(found).map(([name, value]) => {
    const threshold = name === "diagonal" && !within ? 0.7 : THRESHOLDS[name];
    return { name, value, threshold, holds: value >= threshold };
  });
  if (labels.some(({ name, holds }) => holds && ["diagonal", "next", "previous"].includes(name)))
    for (const label of labels) if (label.name === "local") label.holds = false;
  return { layer: l, head, rows, labels, thumbnail: thumbnail(all, columns) };
}

/** @param {import("./network.js").Row[]} all @returns {number} of the positions of query and key, by weight */
function correlation(all) {
  let [total, q, k, qq, kk, qk] = [0, 0, 0, 0, 0, 0];
  all.forEach(({ weights }, i) =>
    weights.forEach((w, j) => {
      [total, q, k] = [total + w, q + w * i, k + w * j];
      [qq, kk, qk] = [qq + w * i * i, kk + w * j * j, qk + w * i * j];
    }),
  );
  const spread = Math.sqrt(Math.max(0, (qq / total - (q / total) ** 2) * (kk / total - (k / total) ** 2)));
  return spread > 1e-9 ? (qk / total - (q * k) / total ** 2) / spread : 0;
}

/** @param {import("./network.js").Row[]} all @param {number} columns @returns {string} at most 32 × 32 means, float32, base64 */
function thumbnail(all, columns) {
  const [tall, wide] = [Math.min(SMALL, all.length), Math.min(SMALL, columns)];
  const edge = (/** @type {number} */ at, /** @type {number} */ size, /** @type {number} */ cells, up = false) =>
    up ? Math.ceil((at * size) / cells) : Math.floor((at * size) / cells);
  const values = new Float32Array(tall * wide);
  for (let r = 0; r < tall; r++)
    for (let c = 0; c < wide; c++) {
      const rows = all.slice(edge(r, all.length, tall), edge(r + 1, all.length, tall, true));
      const parts = rows.flatMap(({ weights }) => list(weights.subarray(edge(c, columns, wide), edge(c + 1, columns, wide, true))));
      values[r * wide + c] = rest(parts, []) / parts.length;
    }
  return btoa(Array.from(new Uint8Array(values.buffer), (byte) => String.fromCharCode(byte)).join(""));
}
