// Random draws that are those of `qkv.decode.sampling`: SplitMix64 on a key that BLAKE2b makes of the prompt.

import { probabilities } from "./models.js";

const WORD = 64;
const GOLDEN = 0x9e3779b97f4a7c15n;
/** The shifts and factors of SplitMix64's finalizer: Steele et al. 2014, figure 16. @type {[bigint, bigint][]} */
const MIX = [[30n, 0xbf58476d1ce4e5b9n], [27n, 0x94d049bb133111ebn], [31n, 1n]];
/** RFC 7693, section 2.6 and 2.7. */
const START = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDERS = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((order) => Array.from(order, (digit) => Number.parseInt(digit, 16)));
const COLUMNS = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];

/** @param {bigint} x @returns {bigint} of 64 bits */
const word = (x) => BigInt.asUintN(WORD, x);
/** @param {bigint} x @param {number} by @returns {bigint} */
const turned = (x, by) => word((x >> BigInt(by)) | (x << BigInt(WORD - by)));

/** @param {Uint8Array} bytes @returns {bigint} BLAKE2b with a digest of 8 bytes, little-endian */
function blake2b(bytes) {
  const hash = START.map((x, at) => (at === 0 ? x ^ 0x01010008n : x));
  const blocks = Math.max(1, Math.ceil(bytes.length / 128));
  for (let block = 0; block < blocks; block++) {
    const padded = new Uint8Array(128);
    padded.set(bytes.subarray(block * 128, (block + 1) * 128));
    const m = Array.from(new BigUint64Array(padded.buffer));
    const v = [...hash, ...START];
    v[12] ^= BigInt(Math.min(bytes.length, (block + 1) * 128));
    if (block === blocks - 1) v[14] = word(~v[14]);
    for (let round = 0; round < 12; round++)
      COLUMNS.forEach(([a, b, c, d], at) => {
        const order = ORDERS[round % 10];
        for (const [x, [far, near]] of [[m[order[2 * at]], [32, 24]], [m[order[2 * at + 1]], [16, 63]]]) {
          v[a] = word(v[a] + v[b] + x);
          v[d] = turned(v[d] ^ v[a], far);
          v[c] = word(v[c] + v[d]);
          v[b] = turned(v[b] ^ v[c], near);
        }
      });
    hash.forEach((x, at) => (hash[at] = x ^ v[at] ^ v[at + 8]));
  }
  return hash[0];
}

/** @param {number[]} ids @returns {bigint} the key of a prompt: its ids as Python writes a tuple */
export function keyOf(ids) {
  const tuple = ids.length === 1 ? `(${ids[0]},)` : `(${ids.join(", ")})`;
  return blake2b(new TextEncoder().encode(`0:0:${tuple}`));
}

/** @param {bigint} x @returns {bigint} */
function mixed(x) {
  return MIX.reduce((bits, [shift, factor]) => word((bits ^ (bits >> shift)) * factor), x);
}

/** @param {number} seed @param {bigint} key @param {number} step @returns {number} in [0, 1), a multiple of 2⁻⁵³ */
export function uniform(seed, key, step) {
  const bits = mixed(key ^ mixed(word(BigInt(seed))));
  return Number(mixed(word(bits + BigInt(step + 1) * GOLDEN)) >> 11n) * 2 ** -53;
}

/**
 * Draw a token: the inverse of the cumulative distribution, in the order of ids.
 * @param {Float32Array} logits @param {number[]} never @param {number} temperature @param {number} chance in [0, 1)
 * @returns {number}
 */
export function drawn(logits, never, temperature, chance) {
  const scores = logits.map((value, id) => (never.includes(id) ? Number.NEGATIVE_INFINITY : value / temperature));
  const shares = probabilities(scores);
  let cumulative = shares.reduce((sum, share) => sum + share, 0);
  const goal = chance * cumulative;
  cumulative = 0;
  return Math.max(0, shares.findIndex((share) => (cumulative += share) > goal));
}
