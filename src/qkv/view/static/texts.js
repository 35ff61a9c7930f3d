// Text to tokens and back, as `qkv.data.tokenizer` does it.

/** @typedef {{ kind: string, lowercase: boolean, unicode: string, pieces: string[], merges: string[] }} Vocabulary */
/** @typedef {{ text: string, shown: string, note: string, special?: boolean }} Token */
/**
 * @typedef {object} Tokenizer
 * @property {(text: string) => number[]} encode @property {(ids: number[]) => string} decode
 * @property {(id: number) => string} piece a readable name, in which "▁" stands for a space
 */

const [JOINER, JOINER_IN_TEXT, UNKNOWN] = ["￭", "■", 3];
const SEPARATORS = "\\t-\\r\\x1c-\\x20\\x85\\u1680\\u2000-\\u2006\\u2008-\\u200a\\u2028\\u2029\\u205f\\u3000";
const WORD = new RegExp(`[\\p{L}\\p{M}\\p{N}]+|[^${SEPARATORS}\\p{L}\\p{M}\\p{N}]`, "gu");
const BETWEEN = new RegExp(`[^${SEPARATORS}]+`, "gu");
const BYTES_SPLIT = / ?[\p{L}\p{M}]{1,64}| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]|\s/gu;
const SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"];

/** The character that stands for each byte. */
const LETTERS = (() => {
  const plain = [[33, 126], [161, 172], [174, 255]];
  let more = 256;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(plain.some(([from, to]) => byte >= from && byte <= to) ? byte : more++),
  );
})();

/** @param {Vocabulary} vocabulary @returns {Tokenizer} */
export function tokenizer({ kind, lowercase, unicode, pieces, merges }) {
  const ids = new Map(pieces.map((piece, id) => [piece, id]));
  const ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  const bytes = new Map(LETTERS.map((letter, byte) => [letter, byte]));
  const prepared = (/** @type {string} */ text) => {
    const normal = unicode === "none" ? text : text.normalize(unicode);
    return lowercase ? normal.toLowerCase() : normal;
  };
  const encode = (/** @type {string} */ given) => {
    const text = prepared(given);
    if (kind === "bpe") return text ? (` ${text}`.match(BYTES_SPLIT) ?? []).flatMap((word) => merged(word, ids, ranks)) : [];
    if (kind === "char") return Array.from(text, (character) => ids.get(character) ?? UNKNOWN);
    if (kind === "none") {
      const words = text.match(BETWEEN) ?? [];
      const marked = (/** @type {string} */ word) => (SPECIALS.includes(word.replace(/^￭+/u, "")) ? JOINER + word : word);
      return words.map((word) => ids.get(marked(word)) ?? UNKNOWN);
    }
    return wordsOf(text).map((word) => ids.get(word) ?? ids.get(bare(word)) ?? UNKNOWN);
  };
  const bytesOf = (/** @type {number[]} */ list) =>
    Uint8Array.from(list.flatMap((id) => Array.from(pieces[id], (letter) => bytes.get(letter) ?? 0)));
  const decode = (/** @type {number[]} */ list) => {
    const kept = list.filter((id) => id >= UNKNOWN);
    if (kind === "bpe") return new TextDecoder().decode(bytesOf(kept.filter((id) => id !== UNKNOWN))).replace(/^ /u, "");
    if (kind === "char") return kept.map((id) => (id === UNKNOWN ? "\ufffd" : pieces[id])).join("");
    const words = kept.map((id) => pieces[id]);
    if (kind === "none") return words.map((word) => (marksSpecial(word) ? word.slice(1) : word)).join(" ");
    return words.reduce((text, word, at) => {
      const glued = at === 0 || word.startsWith(JOINER) || words[at - 1].endsWith(JOINER);
      return `${text}${glued ? "" : " "}${bare(word)}`;
    }, "");
  };
  const piece = (/** @type {number} */ id) => {
    if (id <= UNKNOWN || kind === "char" || kind === "none") return pieces[id];
    if (kind === "word") return bare(pieces[id]) || pieces[id];
    const all = bytesOf([id]);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(all).replaceAll(" ", "▁");
    } catch {
      const named = (/** @type {number} */ byte) =>
        byte < 128 ? String.fromCharCode(byte) : `<${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
      return Array.from(all, named).join("").replaceAll(" ", "▁");
    }
  };
  return { encode, decode, piece };
}

/** @param {string} word @returns {boolean} */
function marksSpecial(word) {
  return word.startsWith(JOINER) && SPECIALS.includes(word.replace(/^￭+/u, ""));
}

/** @param {string} word @param {Map<string, number>} ids @param {Map<string, number>} ranks @returns {number[]} */
function merged(word, ids, ranks) {
  const parts = Array.from(new TextEncoder().encode(word), (byte) => LETTERS[byte]);
  for (;;) {
    let [best, place] = [Number.POSITIVE_INFINITY, -1];
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Number.POSITIVE_INFINITY;
      if (rank < best) [best, place] = [rank, i];
    }
    if (place < 0) return parts.map((part) => ids.get(part) ?? UNKNOWN);
    parts.splice(place, 2, parts[place] + parts[place + 1]);
  }
}

/** @param {string} text @returns {string[]} words and marks, with joiners where a mark touches its neighbor */
function wordsOf(text) {
  const found = /** @type {string[]} */ ([]);
  let end = -1;
  for (const match of text.replaceAll(JOINER, JOINER_IN_TEXT).matchAll(WORD)) {
    const [piece, touches] = [match[0], match.index === end];
    const mark = !/^[\p{L}\p{M}\p{N}]/u.test(piece);
    if (touches && !mark) found[found.length - 1] += JOINER;
    found.push(touches && mark ? JOINER + piece : piece);
    end = match.index + piece.length;
  }
  return found;
}

/** @param {string} word @returns {string} without joiners */
function bare(word) {
  return word.replace(/^￭+|￭+$/gu, "");
}

/**
 * The tokens of a sequence as the page lists them, as `qkv.view.tokens` labels them.
 * @param {string[]} pieces @returns {Token[]}
 */
export function tokens(pieces) {
  const outside = (/** @type {string} */ piece) => /^(?:<\/?s>|<(?:bos|eos|pad)>)$/u.test(piece);
  const start = pieces.some((piece) => piece.length > 1 && piece.startsWith("▁"));
  const first = pieces.findIndex((piece) => piece && !outside(piece));
  return pieces.map((piece, at) => {
    const note = piece === "<unk>" ? "unknown" : "";
    const base = { text: piece, note, ...(outside(piece) ? { special: true } : {}) };
    if (!piece || piece === "<unk>" || outside(piece)) return { ...base, shown: label(piece) };
    const plain = piece.replace(/^▁+/u, "");
    const spaces = "␣".repeat(piece.length - plain.length);
    if (!plain) return { ...base, shown: spaces };
    if (!start) return { ...base, shown: label(piece) };
    if (spaces) return { ...base, shown: spaces.slice(1) + label(plain) };
    return { ...base, shown: /^[\p{L}\p{N}]/u.test(piece) && at !== first ? `·${label(piece)}` : label(piece) };
  });
}

/** @param {string} token @returns {string} visible and harmless anywhere */
function label(token) {
  if (!token) return "∅";
  const code = (/** @type {string} */ character) =>
    `‹U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}›`;
  const seen = Array.from(token.slice(0, 200), (character) => {
    if (character === "\n") return "↵";
    if (character === "\t") return "⇥";
    if (/\p{Zs}/u.test(character)) return "␣";
    return /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Cn}]/u.test(character) ? code(character) : character;
  });
  return `${/^\p{M}/u.test(token) ? "◌" : ""}${seen.join("")}`;
}
