// Answers as `qkv.view.packing` writes them: compressed JSON in which long lists and texts occur once.

const SHARED = 6; // lists with so many items or more are numbered, in the order in which they end
const SHARED_TEXT = 64; // and texts with so many characters

/** @param {string} text base64 @returns {Promise<Record<string, any>>} answers by request path */
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  /** @type {any[]} */
  const lists = [];
  return whole(JSON.parse(await new Response(plain).text()), lists);
}

/** @param {any} item @param {any[]} lists and texts numbered so far @returns {any} the item with every list in its place */
function whole(item, lists) {
  if (Array.isArray(item)) {
    for (let place = 0; place < item.length; place++) item[place] = whole(item[place], lists);
    if (item.length >= SHARED) lists.push(item);
    return item;
  }
  if (typeof item === "string" && item.length >= SHARED_TEXT) lists.push(item);
  if (item === null || typeof item !== "object") return item;
  if (Object.hasOwn(item, "$")) return lists[item.$];
  if (Object.hasOwn(item, "number") && Object.keys(item).length === 1) return Number(item.number);
  for (const name of Object.keys(item)) item[name] = whole(item[name], lists);
  return Object.hasOwn(item, "x") && Object.keys(item).length === 1 ? multiple(item.x[0], item.x[1]) : item;
}

/** @param {number[]} factors @param {number[]} matrix @returns {number[]} each row times its factor */
function multiple(factors, matrix) {
  const columns = matrix.length / factors.length;
  return matrix.map((number, place) => factors[Math.floor(place / columns)] * number);
}
