// What if: the same token under another mechanism, compared with the recorded one or a third.

import { latest, nameOf, path } from "./answers.js";
import { button, ribbon, select, slider } from "./controls.js";
import { element } from "./dom.js";
import { short } from "./numbers.js";
import { strip } from "./vectors.js";
import { compared } from "./compare.js";

/** @typedef {{ name: string, default: number, low: number, high: number, step?: number }} Parameter */
/** @typedef {{ name: string, parameters: Parameter[] }} Kind */
/** @typedef {{ name: string, parameters?: Record<string, number> }} Choice */
/** @typedef {{ score?: Choice, normalizer?: Choice, mask?: Choice, temperature?: number, vector?: number[] }} Change */
/** @typedef {Record<"scores" | "normalizers" | "masks", Kind[]>} Kinds */
/** @typedef {Kinds & { recorded: Record<"score" | "normalizer" | "mask", Choice> }} Mechanisms */

const PARTS = /** @type {const} */ ({ score: "scores", normalizer: "normalizers", mask: "masks" });

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function whatif(home, page) {
  const picker = element("div");
  const panel = element("section.panel", { "aria-label": "Changes" });
  const result = element("section.comparison", { "aria-live": "off" });
  home.append(picker, element("div.split.whatif-split", panel, result));
  const [asking, answering] = [latest(result), latest(result)];
  let [shown, timer] = ["", 0];
  /** @type {{ before: Change, after: Change }} */
  let changes = { before: {}, after: {} };
  /** @type {number[]} */
  let vector = [];

  const show = (state) => {
    const { layer, head, query = "0" } = state;
    changes = { before: parsed(state.before), after: parsed(state.after) };
    const asked = `${layer} ${head} ${query} ${state.colors}`;
    if (asked === shown) return;
    shown = asked;
    const tokens = page.sequences[page.layers[Number(layer)].queries];
    const moved = (place) => page.go({ query: place, after: JSON.stringify({ ...changes.after, vector: undefined }) });
    ribbon(picker, tokens, "token", Number(query), moved);
    const both = Promise.all([
      page.source.json(path("mechanisms", { layer, head })),
      page.source.json(path("steps", { layer, head, query })),
    ]);
    const fill = ([mechanisms, { stages }]) => {
      for (const side of /** @type {const} */ (["before", "after"])) changes[side] = offered(changes[side], mechanisms);
      vector = stages.find(({ symbol }) => symbol === "q")?.values ?? [];
      build(mechanisms, state);
      ask(state);
    };
    asking(both, fill);
  };
  const change = (state, side, to) => {
    changes[side] = { ...changes[side], ...to };
    page.note(
      Object.fromEntries(
        Object.entries(changes).map(([name, all]) => [name, Object.keys(all).length > 0 ? JSON.stringify(all) : null]),
      ),
    );
    clearTimeout(timer);
    timer = setTimeout(() => ask(state), 60);
  };
  const build = (mechanisms, state) => {
    const rebuild = () => build(mechanisms, state);
    const side = (name, title) =>
      element(
        "fieldset",
        element("legend", title),
        ...mechanism(mechanisms, changes[name], (to, anew) => {
          change(state, name, to);
          if (anew) rebuild();
        }),
      );
    const reset = button("reset", "Undo all changes", () => {
      changes = { before: {}, after: {} };
      change(state, "after", {});
      rebuild();
    });
    panel.replaceChildren(
      side("before", "before"),
      side("after", "after"),
      element(
        "fieldset",
        element("legend", "query, after"),
        ...entries(vector, changes.after.vector, (to) => change(state, "after", { vector: to })),
      ),
      reset,
    );
  };
  /** @param {string} told why the change was refused; the last comparison stays */
  const refused = (told) => {
    result.querySelector(".trouble")?.remove();
    result.prepend(element("p.trouble", { role: "alert" }, told));
  };
  const ask = ({ layer, head, query = "0" }) => {
    const where = { layer: Number(layer), head: Number(head), query: Number(query) };
    const one = (to) => page.source.post("api/whatif", { ...where, ...to });
    const wanted =
      Object.keys(changes.before).length === 0 ? [one(changes.after)] : [one(changes.after), one(changes.before)];
    const fill = (/** @type {any[]} */ [after, before]) => {
      const failed = after.error ?? before?.error;
      if (failed) return refused(failed);
      const tokens = page.sequences[page.layers[Number(layer)].keys];
      result.replaceChildren(
        compared({ after, before, label: (place) => nameOf(tokens, place), ramp: page.ramp({ colors: "cividis" }) }),
      );
    };
    const refuse = (/** @type {Error} */ error) => [{ error: error.message }];
    answering(Promise.all(wanted).catch(refuse), fill);
  };
  return { show, close: () => clearTimeout(timer) };
}

/** @param {string | undefined} text what the URL says, by whomever @returns {Change} what of it is a change */
function parsed(text) {
  let found;
  try {
    found = JSON.parse(text ?? "{}") ?? {};
  } catch {
    return {};
  }
  const isChoice = (/** @type {any} */ choice) =>
    typeof choice?.name === "string" && Object.values(choice.parameters ?? {}).every(Number.isFinite);
  const isVector = (/** @type {any} */ vector) => Array.isArray(vector) && vector.every(Number.isFinite);
  const tests = { score: isChoice, normalizer: isChoice, mask: isChoice, temperature: Number.isFinite, vector: isVector };
  const own = Object.entries(tests).filter(([name, test]) => Object.hasOwn(found, name) && test(found[name]));
  return Object.fromEntries(own.map(([name]) => [name, found[name]]));
}

/** @param {Change} change @param {Kinds} kinds @returns {Change} without choices that there are not */
function offered(change, kinds) {
  const known = ([part, choice]) => !(part in PARTS) || kinds[PARTS[part]].some(({ name }) => name === choice.name);
  return Object.fromEntries(Object.entries(change).filter(known));
}

/** @param {string} name as in the code @returns {string} */
function spaced(name) {
  return name.replaceAll("_", " ");
}

/**
 * The controls of one mechanism.
 * @param {Mechanisms} mechanisms @param {Change} current @param {(to: Change, anew: boolean) => void} change
 * @returns {HTMLElement[]}
 */
function mechanism(mechanisms, current, change) {
  const parts = Object.entries(PARTS).flatMap(([part, plural]) => {
    const name = /** @type {keyof typeof PARTS} */ (part);
    const kinds = mechanisms[plural];
    const recorded = mechanisms.recorded[name];
    const chosen = current[name] ?? recorded;
    const options = {
      "": `recorded: ${spaced(recorded.name)}`,
      ...Object.fromEntries(kinds.map((kind) => [kind.name, spaced(kind.name)])),
    };
    const pick = (to) => {
      const parameters = Object.fromEntries(
        kinds.find((kind) => kind.name === to)?.parameters.map((each) => [each.name, each.default]) ?? [],
      );
      change({ [name]: to ? { name: to, parameters } : undefined }, true);
    };
    const sliders = (kinds.find((kind) => kind.name === chosen.name)?.parameters ?? []).map((range) => {
      const value = Number(chosen.parameters?.[range.name] ?? range.default);
      return slider(range.name, { ...range, value }, (to) =>
        change({ [name]: { name: chosen.name, parameters: { ...chosen.parameters, [range.name]: to } } }, false),
      );
    });
    return [select(part, options, current[name]?.name ?? "", pick), ...sliders];
  });
  const heat = slider(
    "temperature",
    { low: -4, high: 4, step: 0.1, value: Math.log2(current.temperature ?? 1), shown: (at) => 2 ** at },
    (to) => change({ temperature: to === 0 ? undefined : 2 ** to }, false),
  );
  return [...parts, heat];
}

/**
 * The entries of the query: select one, change it.
 * @param {number[]} recorded @param {number[] | undefined} changed
 * @param {(vector: number[] | undefined) => void} change @returns {HTMLElement[]}
 */
function entries(recorded, changed, change) {
  const now = changed?.length === recorded.length ? [...changed] : [...recorded];
  const reach = Math.max(1, ...recorded.map(Math.abs)) * 3;
  let place = 0;
  const [picture, knob] = [element("div"), element("div")];
  const paint = () => {
    let pointed = place;
    const shown = strip({ values: now, name: "query", bare: true, pointed: (at) => (pointed = at ?? pointed) });
    shown.node.addEventListener("click", () => choose(pointed));
    shown.node.addEventListener("keydown", ({ key }) => key === "Enter" && choose(pointed));
    picture.replaceChildren(shown.node);
  };
  const choose = (at) => {
    place = at;
    const moved = (to) => {
      now[place] = to;
      paint();
      change(now.every((value, at) => value === recorded[at]) ? undefined : [...now]);
    };
    knob.replaceChildren(
      slider(
        `entry ${place}, recorded ${short(recorded[place])}`,
        { low: -reach, high: reach, value: now[place] },
        moved,
      ),
    );
  };
  paint();
  if (recorded.length > 0) choose(0);
  return [picture, knob];
}
