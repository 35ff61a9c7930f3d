// What if: the same token under another mechanism, compared with the recorded one or a third.

import { latest, nameOf, path, queryOf } from "./answers.js";
import { button, offeredOr, ribbon, segmented, select, slider } from "./controls.js";
import { element, token } from "./dom.js";
import { finite, short } from "./numbers.js";
import { strip } from "./vectors.js";
import { compared } from "./compare.js";

/** @typedef {{ name: string, default: number, low: number, high: number, step?: number }} Parameter */
/** @typedef {{ name: string, parameters: Parameter[] }} Kind */
/** @typedef {{ name: string, parameters?: Record<string, number> }} Choice */
/** @typedef {{ score?: Choice, normalizer?: Choice, mask?: Choice, temperature?: number, vector?: number[] }} Change */
/** @typedef {Record<"scores" | "normalizers" | "masks", Kind[]>} Kinds */
/** @typedef {{ scope: string, output: string }} Whole where the change applies as the whole model runs */
/** @typedef {{ name: string, before: number, after: number }} Option */
/** @typedef {{ label: string, moved: number, before: Option[], after: Option[] }} Moved */
/** @typedef {Kinds & { recorded: Record<"score" | "normalizer" | "mask", Choice> }} Mechanisms */

/** Where a change applies as the whole model runs, and what then takes the place of the output of a head. */
const SCOPES = { none: "nothing", head: "this head", layer: "this layer", model: "all layers" };
const OUTPUTS = { changed: "of the changed mechanism", zero: "zero", mean: "its mean over the text" };
const PARTS = /** @type {const} */ ({ score: "scores", normalizer: "normalizers", mask: "masks" });

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function whatif(home, page) {
  const picker = element("div");
  const panel = element("section.panel", { "aria-label": "Changes" });
  const result = element("section.comparison", { "aria-live": "off" });
  const whole = element("section.whole", { "aria-label": "The whole model" });
  const told = element("div", { "aria-live": "polite" });
  const [asking, answering, rerunning] = [latest(result), latest(result), latest(told)];
  /** @type {Whole} */
  let wide = { scope: "none", output: "changed" };
  let wider = 0;
  home.append(picker, element("div.split.whatif-split", panel, element("div", whole, result)));
  let [shown, timer] = ["", 0];
  /** @type {{ before: Change, after: Change }} */
  let changes = { before: {}, after: {} };
  /** @type {number[]} */
  let vector = [];

  const show = (state) => {
    const { layer, head } = state;
    const query = queryOf(page, state);
    changes = { before: parsed(state.before), after: parsed(state.after) };
    wide = { scope: offeredOr(SCOPES, state.scope, "none"), output: offeredOr(OUTPUTS, state.output, "changed") };
    const asked = `${layer} ${head} ${query} ${state.colors} ${wide.scope} ${wide.output}`;
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
    whole.hidden = !page.answers;
    whole.replaceChildren(
      element("h3", "The model's answer", element("small", " if the change “after” is applied to")),
      element(
        "div.controls",
        segmented("Applied to", SCOPES, wide.scope, (scope) => page.go({ scope })),
        select("output", OUTPUTS, wide.output, (output) => page.go({ output })),
      ),
      told,
    );
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
  const rerun = ({ layer, head }) => {
    clearTimeout(wider);
    if (wide.scope === "none" || !page.answers) return told.replaceChildren();
    const { vector: _, ...mechanism } = changes.after;
    const changed = wide.output === "changed" ? mechanism : { output: wide.output };
    told.setAttribute("aria-busy", "true");
    const asked = page.source.post("api/rerun", { layer: Number(layer), head: Number(head), scope: wide.scope, ...changed });
    rerunning(
      asked.finally(() => told.removeAttribute("aria-busy")),
      (answer) => told.replaceChildren(moved(answer, Object.keys(changed).length > 0)),
    );
  };
  const ask = (/** @type {import("./shell.js").State} */ state) => {
    const { layer, head } = state;
    if (wide.scope !== "none") {
      clearTimeout(wider);
      wider = setTimeout(() => rerun({ layer, head }), 200);
    }
    const where = { layer: Number(layer), head: Number(head), query: Number(queryOf(page, state)) };
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
  return { show, close: () => [timer, wider].forEach(clearTimeout) };
}

/**
 * What the whole model answers before and after a change: its text, and how the probabilities of each row move.
 * @param {{ before: string, after: string, omitted: number, rows: Moved[] }} answer
 * @param {boolean} changed whether anything is @returns {HTMLElement}
 */
function moved({ before, after, rows, omitted }, changed) {
  const text = (name, words) => element("p.answer", element("span.caption", name), " ", element("bdi", words));
  const texts = before === after ? [text(before ? "before and after" : "", before)] : [text("before", before), text("after", after)];
  const same = rows.every((row) => row.moved < 0.0005);
  const lines = rows.map((row) => {
    const [best, now] = [row.before[0], row.after[0]];
    const options = [best, ...(now.name === best.name ? [] : [now])];
    const cells = options.map((option) =>
      element("div.option", token(option.name), ` ${share(option.before)} → ${share(option.after)}`),
    );
    const bar = element("i.amount");
    bar.style.setProperty("--part", String(finite(row.moved)));
    const kind = now.name === best.name ? "tr" : "tr.turned";
    return element(kind, element("th", { scope: "row" }, token(row.label)), element("td", ...cells), element("td.amounts", bar, share(row.moved)));
  });
  const head = element("tr", ...["at", "likeliest, before → after", "probability moved"].map((name) => element("th", { scope: "col" }, name)));
  const table = element("table.moved", element("thead", head), element("tbody", ...lines));
  const notes = [same ? (changed ? "Nothing moves." : "Nothing is changed yet: choose another mechanism after, or another output.") : "", omitted ? `${omitted} rows that move less are not shown.` : ""].filter(Boolean);
  return element("div", ...(before || after ? texts : []), ...notes.map((note) => element("p.missing", note)), table);
}

/** @param {number} part @returns {string} a probability in percent */
function share(part) {
  return Number.isFinite(part) ? `${(100 * part).toFixed(part > 0.0995 ? 0 : 1)}\u00a0%` : "NaN";
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
