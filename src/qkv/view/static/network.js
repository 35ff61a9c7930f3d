// The layers of a trained network, computed here: weights of int8 with a scale for each row, attention by the catalog.

import { NORMALIZERS, SCORES } from "./formulas.js";
import { softmax, times } from "./numeric.js";

/** @typedef {import("./numeric.js").Vector} Vector */
/** @typedef {{ rows: number, columns: number, shape: number[], values: Float32Array }} Tensor rows times columns */
/** @typedef {{ shape: number[], at: number, scale?: number, half?: true }} Stored where in the bytes its numbers and scales are */
/** @typedef {{ name: string, heads: Record<string, any>[] }} Part a score or normalizer, and its numbers by head */
/**
 * @typedef {object} Choice a score, normalizer or mask
 * @property {string} name @property {Record<string, number>} [parameters]
 * @property {{ first?: Vector, last?: Vector, table?: Vector[] }[]} [heads] of a recorded mask: the keys of each query
 */
/**
 * @typedef {object} Change what differs in a head; `output` is 0 or other numbers in place of its output
 * @property {Choice} [score] @property {Choice} [normalizer] @property {Choice} [mask] @property {number} [temperature]
 * @property {Vector} [vector] another query @property {Vector | 0} [output]
 */
/** @typedef {(layer: string, head: number) => Change | undefined} Choose */
/**
 * @typedef {object} Described an attention of the model
 * @property {string} kind "self" or "cross" @property {string} short
 * @property {number} heads @property {number} groups heads of keys and values
 * @property {Part} score @property {Part} normalizer
 * @property {{ query: any[] | null, key: any[] | null }} project matrices that a score applies once to queries and keys
 * @property {number | null} rotary the base of rotary positions @property {string} equation
 * @property {{ name: string, heads: any[] } | null} bias
 */
/** @typedef {{ tensors: Record<string, Tensor>, attentions: Record<string, Described> }} Network */
/** @typedef {{ query: Vector, visible: number[], scores: Float64Array, weights: Float64Array, output: Float64Array }} Row */
/**
 * @typedef {object} Layer an attention while a text is read: by head, the vectors of all positions so far
 * @property {string} name @property {Described} own @property {Choice} mask @property {Choose} choose
 * @property {[string, string]} sides the sequences of its queries and of its keys
 * @property {Vector[][]} queries @property {Vector[][]} keys @property {Vector[][]} values
 * @property {Vector[]} inputs of its queries @property {Row[][]} rows
 * @property {{ change: Change | undefined, found: ReturnType<typeof mechanism> }[]} mechanisms the last one of each head
 * @property {[number, number]} [shape] queries and keys, of a recorded layer, which may have more than a text that is read:
 * @property {Vector[]} [norms] of each head, the norms of values after the output projection
 * @property {Vector[]} [outputs] of each query, after the output projection
 * @property {Vector[][]} [tables] of each head, its weights at a level, in place of what they are computed from
 * @property {number} [level] @property {boolean} [exact] whether the tables are no samples
 */

/** @param {string} text base64 of what is compressed @returns {Promise<ArrayBuffer>} */
export function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
}

/** @param {number} bits of a float16 @returns {number} */
function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? (fraction ? Number.NaN : Number.POSITIVE_INFINITY) : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/**
 * Numbers of which the first bytes come first, then the second ones, and so on.
 * @param {ArrayBuffer} bytes @param {number} at @param {number} count @param {number} size bytes of each @returns {ArrayBuffer}
 */
function gathered(bytes, at, count, size) {
  const [shuffled, plain] = [new Uint8Array(bytes, at, count * size), new Uint8Array(count * size)];
  for (let part = 0, from = 0; part < size; part++) for (let to = part; to < plain.length; to += size) plain[to] = shuffled[from++];
  return plain.buffer;
}

/**
 * Unpack tensors.
 * @param {Record<string, Stored>} tensors @param {ArrayBuffer} bytes @returns {Record<string, Tensor>}
 */
export function unpacked(tensors, bytes) {
  const tensor = (/** @type {Stored} */ { shape, at, scale, half: halved }) => {
    const columns = shape.at(-1) ?? 1;
    const rows = shape.slice(0, -1).reduce((product, size) => product * size, 1);
    const own = { rows, columns, shape };
    const floats = (/** @type {number} */ start, /** @type {number} */ count) => new Float32Array(gathered(bytes, start, count, 4));
    if (halved) return { ...own, values: Float32Array.from(new Uint16Array(gathered(bytes, at, rows * columns, 2)), half) };
    if (scale === undefined) return { ...own, values: floats(at, rows * columns) };
    const [scales, values] = [floats(scale, rows), Float32Array.from(new Int8Array(bytes, at, rows * columns))];
    for (let r = 0, place = 0; r < rows; r++) for (let c = 0; c < columns; c++) values[place++] *= scales[r];
    return { ...own, values };
  };
  return Object.fromEntries(Object.entries(tensors).map(([name, stored]) => [name, tensor(stored)]));
}

/**
 * Put tensors where they belong: one of a single dimension as it is, others as rows.
 * @param {any} item @param {Record<string, Tensor>} tensors @returns {any}
 */
export function placed(item, tensors) {
  if (typeof item !== "object" || item === null) return item;
  if (Array.isArray(item)) return item.map((part) => placed(part, tensors));
  if (!Object.hasOwn(item, "tensor"))
    return Object.fromEntries(Object.entries(item).map(([name, part]) => [name, placed(part, tensors)]));
  const { shape, columns, values } = tensors[item.tensor];
  if (shape.length < 2) return values;
  const rows = Array.from({ length: values.length / columns }, (_, r) => values.subarray(r * columns, (r + 1) * columns));
  return item.columns ? Array.from({ length: columns }, (_, c) => Float32Array.from(rows, (row) => row[c])) : rows;
}

/**
 * W x + b for each row of x.
 * @param {Network} net @param {string} name @param {Float32Array} x (n, columns) @param {number} [from] first row of W
 * @param {number} [to] @returns {Float32Array} (n, to − from)
 */
export function linear({ tensors }, name, x, from = 0, to = tensors[`${name}.weight`].rows) {
  return product(tensors[`${name}.weight`], tensors[`${name}.bias`]?.values, x, from, to);
}

/** @param {Tensor} weight @param {Float32Array | undefined} bias @param {Float32Array} x @param {number} from @param {number} to */
export function product({ columns, values: w }, bias, x, from, to) {
  const n = x.length / columns;
  const wide = to - from;
  const out = new Float32Array(n * wide);
  for (let i = 0; i < n; i++) {
    const a = i * columns;
    let o = from;
    for (; o + 4 <= to; o += 4) {
      const c0 = o * columns;
      const c1 = c0 + columns;
      const c2 = c1 + columns;
      const c3 = c2 + columns;
      let s0 = 0;
      let s1 = 0;
      let s2 = 0;
      let s3 = 0;
      for (let d = 0; d < columns; d++) {
        const value = x[a + d];
        s0 += value * w[c0 + d];
        s1 += value * w[c1 + d];
        s2 += value * w[c2 + d];
        s3 += value * w[c3 + d];
      }
      const at = i * wide + o - from;
      out[at] = s0;
      out[at + 1] = s1;
      out[at + 2] = s2;
      out[at + 3] = s3;
    }
    for (; o < to; o++) {
      let s = 0;
      for (let d = 0; d < columns; d++) s += x[a + d] * w[o * columns + d];
      out[i * wide + o - from] = s;
    }
    if (bias) for (let at = 0; at < wide; at++) out[i * wide + at] += bias[from + at];
  }
  return out;
}

/** @param {Network} net @param {string} name of a layer norm; x itself if there is none @param {Float32Array} x */
export function norm({ tensors }, name, x) {
  const [gain, shift] = [tensors[`${name}.weight`]?.values, tensors[`${name}.bias`]?.values];
  if (!gain) return x;
  const width = gain.length;
  const out = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += width) {
    let [mean, square] = [0, 0];
    for (let d = 0; d < width; d++) mean += x[at + d] / width;
    for (let d = 0; d < width; d++) square += (x[at + d] - mean) ** 2 / width;
    const scale = 1 / Math.sqrt(square + 1e-5);
    for (let d = 0; d < width; d++) out[at + d] = (x[at + d] - mean) * scale * gain[d] + shift[d];
  }
  return out;
}

/** @param {Float32Array} x @param {Float32Array} y @returns {Float32Array} */
export function sum(x, y) {
  return x.map((value, at) => value + y[at]);
}

/** @type {Record<string, (x: number) => number>} */
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  squared_relu: (x) => Math.max(0, x) ** 2,
  silu: (x) => x / (1 + Math.exp(-x)),
  gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

/** Abramowitz and Stegun 1964, eq. 7.1.26: within 1.5e-7. @param {number} x @returns {number} */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

/**
 * The embeddings of tokens, with positions if these are added to them.
 * @param {Network} net @param {{ embed: string, scale: number, positions: string }} how @param {number[]} ids
 * @param {number} start position of the first @returns {Float32Array}
 */
export function embedded({ tensors }, { embed, scale, positions }, ids, start) {
  const { columns: width, values } = tensors[`${embed}.weight`];
  const learned = tensors[`${positions}.weight`]?.values;
  const out = new Float32Array(ids.length * width);
  ids.forEach((id, i) => {
    for (let d = 0; d < width; d++) {
      const place = i * width + d;
      out[place] = values[id * width + d] * scale;
      if (learned) out[place] += learned[(start + i) * width + d];
      if (positions !== "sinusoidal") continue;
      const angle = (start + i) / 10_000 ** ((d - (d % 2)) / width);
      out[place] += d % 2 ? Math.cos(angle) : Math.sin(angle);
    }
  });
  return out;
}

/**
 * @param {Network} net @param {string} name @param {Choice} mask @param {Choose} choose
 * @param {[string, string]} [sides] the sequences of its queries and of its keys @returns {Layer}
 */
export function attending(net, name, mask, choose, sides = ["text", "text"]) {
  const own = net.attentions[name];
  const lists = (/** @type {number} */ count) => Array.from({ length: count }, () => /** @type {any[]} */ ([]));
  const { heads, groups } = own;
  return { name, own, mask, choose, sides, queries: lists(heads), keys: lists(groups), values: lists(groups), inputs: [], rows: lists(heads), mechanisms: [] };
}

/**
 * Add the vectors of new positions to those of a layer.
 * @param {Vector[][]} home by head @param {Float32Array} x (n, heads · width)
 * @param {Vector[][][] | null} [project] a matrix for each head @param {number | null} [rotary]
 */
export function add(home, x, width, project = null, rotary = null) {
  const heads = home.length;
  for (let at = 0, i = home[0].length; at < x.length; at += heads * width, i++)
    for (let h = 0; h < heads; h++) {
      const own = x.subarray(at + h * width, at + (h + 1) * width);
      const projected = project ? times(project[h], own) : own;
      home[h].push(rotary === null ? projected : rotated(projected, i, rotary));
    }
}

/** @param {Vector} x @param {number} position @param {number} base @returns {Vector} */
function rotated(x, position, base) {
  const out = Float32Array.from(x);
  for (let d = 0; d < x.length; d += 2) {
    const angle = position * base ** (-d / x.length);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    out[d] = x[d] * cos - x[d + 1] * sin;
    out[d + 1] = x[d] * sin + x[d + 1] * cos;
  }
  return out;
}

/** @param {Choice} mask @param {number} head @param {number} i a query @param {number} count of keys @returns {number[]} the keys it sees */
function seen({ name, parameters = {}, heads }, head, i, count) {
  const { offset = 0, left = 0, right = 0, keys = count } = parameters;
  const recorded = heads?.[head];
  if (recorded?.table) return Array.from({ length: count }, (_, j) => j).filter((j) => recorded.table[i][j]);
  const [first, last] = recorded ? [recorded.first?.[i] ?? 0, (recorded.last?.[i] ?? count) - 1] : {
    none: [0, count - 1],
    causal: [0, i + offset],
    window: [i - left, i + right],
    lengths: [0, keys - 1],
  }[name] ?? [0, -1];
  const found = [];
  for (let j = Math.max(0, first); j <= Math.min(last, count - 1); j++) found.push(j);
  return found;
}

/**
 * The mechanism of a head with the changes that are made to it.
 * @param {Layer} layer @param {number} head @param {Change} [change]
 */
export function mechanism({ own, mask }, head, change = {}) {
  const part = (/** @type {any} */ catalog, /** @type {Part} */ usual, /** @type {Choice | undefined} */ choice) => {
    const name = choice?.name ?? usual.name;
    const numbers = Object.fromEntries(catalog[name].numbers.map((each) => [each.name, each.default]));
    return { name, entry: catalog[name], p: choice ? { ...numbers, ...choice.parameters } : usual.heads[head] };
  };
  const score = part(SCORES, own.score, change.score);
  const alike = score.entry.positive === SCORES[own.score.name].positive;
  const usual = alike ? undefined : { name: score.entry.positive ? "sum" : "softmax" };
  const normalizer = part(NORMALIZERS, own.normalizer, change.normalizer ?? usual);
  const temperature = change.temperature ?? 1;
  if (normalizer.name === "sum" && !score.entry.positive)
    throw new Error("Sums normalize scores that are never negative: choose a kernel as the score, or another normalizer.");
  if (normalizer.name === "sum" && temperature !== 1)
    throw new Error("A sum does not depend on a temperature: change the bandwidth, or normalize by softmax.");
  if (own.bias && temperature !== 1) throw new Error("The temperature of scores with a position bias cannot be changed.");
  return { score, normalizer, mask: change.mask ?? mask, temperature };
}

/**
 * What a head computes for one query before it attends to values.
 * @param {Layer} layer @param {number} head @param {number} i @param {Change} [change] @returns {Omit<Row, "output">}
 */
export function weighted(layer, head, i, change = layer.choose(layer.name, head)) {
  const { score, normalizer, mask } = mechanismOf(layer, head, change);
  const keys = layer.keys[Math.floor((head * layer.own.groups) / layer.own.heads)];
  const query = change?.vector ?? layer.queries[head][i];
  const visible = seen(mask, head, i, keys.length);
  const scores = new Float64Array(visible.length);
  const { formula } = score.entry;
  const temperature = change?.temperature ?? 1;
  for (let at = 0; at < visible.length; at++) {
    const moved = layer.own.bias ? bias(layer.own.bias, head, i, visible[at]) : 0;
    scores[at] = formula(query, keys[visible[at]], score.p) / temperature + moved;
  }
  // A Gaussian under its sum is a softmax of squared distances, which does not underflow.
  const shares =
    score.name === "gaussian" && normalizer.name === "sum"
      ? softmax(Float64Array.from(visible, (j) => SCORES.squared_distance.formula(query, keys[j], score.p)), null)
      : normalizer.entry.formula(scores, normalizer.p);
  const weights = new Float64Array(keys.length);
  for (let at = 0; at < visible.length; at++) weights[visible[at]] = shares[at];
  return { query, visible, scores, weights };
}

/** @param {Layer} layer @param {number} head @param {number} i @param {Change} [change] @returns {Row} what it computes */
export function attended(layer, head, i, change = layer.choose(layer.name, head)) {
  const row = weighted(layer, head, i, change);
  const values = layer.values[Math.floor((head * layer.own.groups) / layer.own.heads)];
  const width = values[0]?.length ?? 0;
  const output = new Float64Array(width);
  for (const j of row.visible) {
    const weight = row.weights[j];
    if (weight !== 0) for (let d = 0; d < width; d++) output[d] += weight * values[j][d];
  }
  return { ...row, output };
}

/** @param {Layer} layer @param {number} head @param {Change} [change] its mechanism, which rows of a pass share */
function mechanismOf(layer, head, change) {
  const last = layer.mechanisms[head];
  if (last && last.change === change) return last.found;
  const found = mechanism(layer, head, change);
  layer.mechanisms[head] = { change, found };
  return found;
}

/** @param {Described["bias"]} bias @param {number} head @param {number} i @param {number} j @returns {number} */
function bias(own, head, i, j) {
  if (!own) return 0;
  const numbers = own.heads[head];
  if (own.name === "table") return numbers[i][j];
  if (own.name === "alibi") return -numbers * Math.abs(i - j);
  const reach = (numbers.length - 1) / 2;
  return numbers[Math.min(Math.max(j - i, -reach), reach) + reach];
}

/** @param {Layer} layer @param {number} head @param {number} i @returns {Row} as it was when the model ran */
export function rowOf(layer, head, i) {
  const count = layer.keys[0].length;
  layer.rows[head][i] ??= attended(layer, head, i);
  const row = layer.rows[head][i];
  if (row.weights.length === count) return row;
  const weights = new Float64Array(count); // later keys, which it did not see
  weights.set(row.weights);
  layer.rows[head][i] = { ...row, weights };
  return layer.rows[head][i];
}

/** @param {Layer} layer @param {number} head @param {number} i @returns {Vector} what the layer goes on with */
export function outputOf(layer, head, i) {
  const { output } = layer.choose(layer.name, head) ?? {};
  const row = rowOf(layer, head, i);
  return output === undefined ? row.output : output === 0 ? row.output.map(() => 0) : output;
}

/** @param {Layer} layer @param {number} from @param {number} n @returns {Float32Array} (n, H · V) */
export function joined(layer, from, n) {
  const { heads } = layer.own;
  const width = layer.values[0][0]?.length ?? 0;
  const out = new Float32Array(n * heads * width);
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < n; i++) out.set(outputOf(layer, h, from + i), (i * heads + h) * width);
  return out;
}

/**
 * The queries (0), keys (1) or values (2) of a layer: rows of one matrix if their inputs have one width.
 * @param {Network} net @param {Layer} layer @param {0 | 1 | 2} part @param {Float32Array} x @param {number} n its rows
 */
function project(net, { name, own, ...layer }, part, x, n) {
  const prefix = `${name.replace(/\.attention$/, "")}.projections.layers`;
  const { rows } = net.tensors[`${prefix}.0.weight`];
  const ends = [own.heads, own.heads + own.groups, own.heads + 2 * own.groups].map((to) => (to * rows) / (own.heads + 2 * own.groups));
  const alone = net.tensors[`${prefix}.1.weight`] !== undefined;
  const out = alone ? linear(net, `${prefix}.${part}`, x) : linear(net, `${prefix}.0`, x, part ? ends[part - 1] : 0, ends[part]);
  const home = [layer.queries, layer.keys, layer.values][part];
  const matrices = part === 0 ? own.project.query : part === 1 ? own.project.key : null;
  add(home, out, out.length / n / home.length, matrices, part === 2 ? null : own.rotary);
}

/**
 * Self-attention of new positions to those so far.
 * @param {Network} net @param {Layer} layer @param {Float32Array} x (n, M) @param {number} n @returns {Float32Array}
 */
export function selfAttention(net, layer, x, n) {
  remember(net, layer, x, x, n);
  return crossAttention(net, layer, x, n);
}

/**
 * Add to what a layer attends to.
 * @param {Network} net @param {Layer} layer @param {Float32Array} keys (n, M) @param {Float32Array} values @param {number} n
 */
export function remember(net, layer, keys, values, n) {
  project(net, layer, 1, keys, n);
  project(net, layer, 2, values, n);
}

/** @param {Network} net @param {Layer} layer @param {Float32Array} x (n, M) @param {number} n @returns {Float32Array} */
export function crossAttention(net, layer, x, n) {
  const from = layer.inputs.length;
  for (let i = 0; i < n; i++) layer.inputs.push(x.subarray((i * x.length) / n, ((i + 1) * x.length) / n));
  project(net, layer, 0, x, n);
  const name = `${layer.name.replace(/\.attention$/, "")}.output`;
  const heads = joined(layer, from, n);
  return net.tensors[`${name}.weight`] ? linear(net, name, heads) : heads;
}

/**
 * A Transformer block.
 * @param {Network} net @param {string} name @param {Float32Array} x (n, M) @param {{ place: string, activation: string }} how
 * @param {Layer} own @param {Layer} [over] the attention to a source @returns {Float32Array}
 */
export function block(net, name, x, { place, activation }, own, over) {
  const n = x.length / net.tensors[`${name}.feed_forward.expand.weight`].columns;
  const around = (/** @type {string} */ part, /** @type {(y: Float32Array) => Float32Array} */ f) => {
    const at = `${name}.around_${part}.norm`;
    x = place === "after" ? norm(net, at, sum(x, f(x))) : sum(x, f(norm(net, at, x)));
  };
  around("self", (y) => selfAttention(net, own, y, n));
  if (over) around("cross", (y) => crossAttention(net, over, y, n));
  around("feed", (y) => {
    const hidden = linear(net, `${name}.feed_forward.expand`, y).map(ACTIVATIONS[activation]);
    return linear(net, `${name}.feed_forward.contract`, hidden);
  });
  return x;
}

/** @type {Record<string, (x: Float32Array, u: Float32Array, h: Float32Array[]) => Float32Array[]>} */
const CELLS = {
  rnn: (x, u, [h]) => [h.map((_, d) => Math.tanh(x[d] + u[d]))],
  gru: (x, u, [h]) => {
    const width = h.length;
    return [
      h.map((past, d) => {
        const [reset, keep] = [sigmoid(x[d] + u[d]), sigmoid(x[width + d] + u[width + d])];
        return (1 - keep) * Math.tanh(x[2 * width + d] + reset * u[2 * width + d]) + keep * past;
      }),
    ];
  },
  lstm: (x, u, [, c]) => {
    const width = c.length;
    const gate = (/** @type {number} */ which, /** @type {number} */ d) => x[which * width + d] + u[which * width + d];
    const next = c.map((past, d) => sigmoid(gate(1, d)) * past + sigmoid(gate(0, d)) * Math.tanh(gate(2, d)));
    return [next.map((value, d) => sigmoid(gate(3, d)) * Math.tanh(value)), next];
  },
};

/** @param {number} x @returns {number} */
function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

/** @param {string} cell @param {Float32Array} first its visible state @returns {Float32Array[]} */
export function hiddenOf(cell, first) {
  return cell === "lstm" ? [first, new Float32Array(first.length)] : [first];
}

/** @param {string} cell @param {Float32Array} x W x + b @param {Float32Array} u U h + b @param {Float32Array[]} hidden */
export function cellStep(cell, x, u, hidden) {
  return CELLS[cell](x, u, hidden);
}

/**
 * A bidirectional recurrent layer of PyTorch.
 * @param {Network} net @param {string} name @param {{ cell: string, layers: number }} how @param {Float32Array} x (n, M)
 * @returns {{ states: Float32Array, last: Float32Array }} (n, 2H), and the last states of both directions (2H)
 */
export function bidirectional({ tensors }, name, { cell, layers }, x) {
  let last = new Float32Array(0);
  for (let depth = 0; depth < layers; depth++) {
    const half = tensors[`${name}.weight_hh_l${depth}`].columns;
    const n = x.length / tensors[`${name}.weight_ih_l${depth}`].columns;
    const states = new Float32Array(n * 2 * half);
    last = new Float32Array(2 * half);
    ["", "_reverse"].forEach((suffix, direction) => {
      const of = (/** @type {string} */ part) => tensors[`${name}.${part}_l${depth}${suffix}`];
      const [w, u] = [of("weight_ih"), of("weight_hh")];
      const inputs = product(w, of("bias_ih")?.values, x, 0, w.rows);
      let hidden = hiddenOf(cell, new Float32Array(half));
      for (let step = 0; step < n; step++) {
        const i = direction ? n - 1 - step : step;
        const recurrent = product(u, of("bias_hh")?.values, hidden[0], 0, u.rows);
        hidden = cellStep(cell, inputs.subarray(i * w.rows, (i + 1) * w.rows), recurrent, hidden);
        states.set(hidden[0], i * 2 * half + direction * half);
      }
      last.set(hidden[0], direction * half);
    });
    x = states;
  }
  return { states: x, last };
}
