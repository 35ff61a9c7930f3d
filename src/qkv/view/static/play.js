// The page that computes: a text to type, a mechanism for all layers of a kind, heads to switch off.

import { model, run } from "./answering.js";
import { computed } from "./computed.js";
import { button, segmented, select, slider } from "./controls.js";
import { byId, element, pageData, themed } from "./dom.js";
import { NORMALIZERS, SCORES } from "./formulas.js";
import { start } from "./shell.js";

/** @typedef {import("./network.js").Change} Change */

const SOON = 120; // milliseconds after the last key
const SAYS = { translate: "Translation", generate: "Continuation", classify: "Label" };
const READS = { translate: "Text to translate", generate: "Text to continue", classify: "Text to classify" };

/** @param {any} found @param {Record<string, import("./colors.js").Color[]>} ramps */
function play(found, ramps) {
  const { task } = found.parts;
  const attentions = Object.entries(found.network.attentions);
  const kinds = [...new Set(attentions.map(([, { kind }]) => kind))];
  /** @type {Record<string, Change>} */
  const changes = Object.fromEntries(kinds.map((kind) => [kind, {}]));
  /** @type {Set<string>} */
  const off = new Set();
  const sampling = { temperature: task === "generate" ? 0.8 : 0, seed: 0, tokens: 40 };
  let [timer, usual, shown] = [0, "", new AbortController()];
  const field = /** @type {HTMLTextAreaElement} */ (element("textarea.sentence", { rows: 2, spellcheck: "false", "aria-label": READS[task] }, found.texts[0]));
  const answer = element("p.written", { "aria-live": "polite" });
  const told = element("p.told", { role: "status" });
  const changed = () => off.size > 0 || kinds.some((kind) => Object.keys(changes[kind]).length > 0);
  const choose = (/** @type {string} */ name, /** @type {number} */ head) => {
    const change = changes[found.network.attentions[name].kind];
    if (off.has(`${name} ${head}`)) return { ...change, output: /** @type {0} */ (0) };
    return Object.keys(change).length > 0 ? change : undefined;
  };
  const compute = () => {
    clearTimeout(timer);
    try {
      const began = performance.now();
      const now = run(found, field.value, { choose: changed() ? choose : undefined, ...sampling });
      const spent = performance.now() - began;
      answer.replaceChildren(...words(now, task, found));
      if (!changed()) usual = now.written;
      const counts = `${now.sequences[Object.keys(now.sequences)[0]].length} tokens in ${spent.toFixed(0)} ms`;
      told.textContent = changed() && usual ? `${counts}. Unchanged, the model answers: ${usual}` : `${counts}.`;
      shown.abort();
      shown = new AbortController();
      start(computed(found.net, now), ramps, shown.signal);
    } catch (error) {
      answer.replaceChildren();
      told.textContent = /** @type {Error} */ (error).message;
    }
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(compute, SOON);
  };
  field.addEventListener("input", () => {
    usual = "";
    soon();
  });
  const pick = (/** @type {string} */ text) => {
    field.value = text;
    usual = "";
    compute();
  };
  const examples = element("div.examples", ...found.texts.map((text) => button(text, `Read: ${text}`, () => pick(text))));
  const panel = element(
    "details.changes",
    element("summary", "Change the model"),
    ...kinds.map((kind) => mechanism(kind, changes[kind], compute, soon)),
    element("p.told", "Heads: press one to switch it off."),
    heads(attentions, off, compute),
  );
  const controls = task === "generate" ? [drawing(sampling, compute, soon)] : [];
  const note = `Everything is computed in this page, with weights of int8. ${rounding(found)}`;
  const play = element("section.play", { "aria-label": "The model" });
  play.append(
    element("label.field", element("span", READS[task]), field),
    ...(found.texts.length > 1 ? [examples] : []),
    ...controls,
    element("div.answer", element("span.caption", SAYS[task]), answer),
    told,
    panel,
    element("p.told", note),
  );
  byId("summary").hidden = true; // the text and the answer stand below
  byId("page").before(play);
  compute();
}

/** @param {any} found @returns {string} how answers differ from those of the weights before rounding */
function rounding({ checked, differ }) {
  if (checked === 0) return "";
  return `Of ${checked} ${checked === 1 ? "text" : "texts"}, ${differ} ${differ === 1 ? "has" : "have"} another answer than with the weights before rounding.`;
}

/** @param {any} now what the model answered @param {string} task @param {any} found @returns {(Node | string)[]} */
function words(now, task, found) {
  if (task === "classify") {
    const order = now.chances.map((_, at) => at).sort((a, b) => now.chances[b] - now.chances[a]);
    const option = (/** @type {number} */ at) => element("bdi.option", `${found.labels[at]} ${(100 * now.chances[at]).toFixed(1)} %`);
    return order.slice(0, 5).map(option);
  }
  const tokenizer = task === "translate" ? found.target : found.source;
  const before = task === "generate" ? found.source.encode(now.title) : [];
  let text = tokenizer.decode(before);
  return now.ids.map((/** @type {number} */ id, /** @type {number} */ at) => {
    const whole = tokenizer.decode([...before, ...now.ids.slice(0, at + 1)]);
    const span = element("bdi", whole.startsWith(text) ? whole.slice(text.length) : "");
    text = whole.startsWith(text) ? whole : text;
    span.title = `${tokenizer.piece(id)}: ${(100 * now.chances[at]).toFixed(1)} %`;
    if (now.chances[at] < 0.5) span.className = "unsure";
    return span;
  });
}

/** @param {string} kind @param {Change} change @param {() => void} compute @param {() => void} soon @returns {HTMLElement} */
function mechanism(kind, change, compute, soon) {
  const home = element("div.controls", { role: "group", "aria-label": `${kind}-attention` });
  const part = (/** @type {"score" | "normalizer"} */ which, /** @type {any} */ catalog) => {
    const offered = Object.keys(catalog).filter((name) => catalog[name].offered);
    const options = { "": "as trained", ...Object.fromEntries(offered.map((name) => [name, name.replaceAll("_", " ")])) };
    const pick = (/** @type {string} */ name) => {
      if (name) change[which] = { name, parameters: {} };
      else delete change[which];
      build();
      compute();
    };
    const chosen = change[which];
    const sliders = chosen
      ? catalog[chosen.name].numbers.map(({ name, default: usual, ...range }) =>
          slider(name, { ...range, value: chosen.parameters?.[name] ?? usual }, (to) => {
            chosen.parameters = { ...chosen.parameters, [name]: to };
            soon();
          }),
        )
      : [];
    return [select(which, options, chosen?.name ?? "", pick), ...sliders];
  };
  const temperature = () =>
    slider("temperature", { low: -4, high: 4, step: 0.1, value: Math.log2(change.temperature ?? 1), shown: (at) => 2 ** at }, (to) => {
      if (to) change.temperature = 2 ** to;
      else delete change.temperature;
      soon();
    });
  const build = () => {
    const fields = () => /** @type {HTMLElement[]} */ ([...home.querySelectorAll("select, input")]);
    const place = fields().findIndex((each) => each === document.activeElement);
    home.replaceChildren(element("b", `${kind}-attention`), ...part("score", SCORES), ...part("normalizer", NORMALIZERS), temperature());
    if (place >= 0) fields()[place]?.focus();
  };
  build();
  return home;
}

/** @param {[string, any][]} attentions @param {Set<string>} off @param {() => void} compute @returns {HTMLElement} */
function heads(attentions, off, compute) {
  const one = (/** @type {string} */ name, /** @type {string} */ short, /** @type {number} */ head) => {
    const key = `${name} ${head}`;
    const pressed = element("button", { type: "button", "aria-pressed": "true", "aria-label": `${short}, head ${head}` }, String(head));
    pressed.addEventListener("click", () => {
      if (!off.delete(key)) off.add(key);
      pressed.setAttribute("aria-pressed", String(!off.has(key)));
      compute();
    });
    return pressed;
  };
  const rows = attentions.map(([name, { short, heads }]) =>
    element("div.layerheads", element("span", { title: name }, short), ...Array.from({ length: heads }, (_, head) => one(name, short, head))),
  );
  return element("div.switches", { role: "group", "aria-label": "Heads" }, ...rows);
}

/** @param {{ temperature: number, seed: number, tokens: number }} sampling @param {() => void} compute @param {() => void} soon */
function drawing(sampling, compute, soon) {
  const set = (/** @type {"temperature" | "seed" | "tokens"} */ name) => (/** @type {number} */ to) => {
    sampling[name] = to;
    soon();
  };
  return element(
    "div.controls",
    slider("temperature of sampling", { low: 0, high: 2, step: 0.05, value: sampling.temperature }, set("temperature")),
    slider("tokens", { low: 1, high: 200, step: 1, value: sampling.tokens }, set("tokens")),
    slider("seed", { low: 0, high: 100, step: 1, value: sampling.seed }, set("seed")),
  );
}

themed();
const data = pageData();
model(data).then((found) => play(found, data.ramps));
