// Controls that all views share: choices, switches, sliders, and the ribbon of tokens.

import { nameOf } from "./answers.js";
import { element, token } from "./dom.js";
import { clamp, count, digits } from "./numbers.js";

const RIBBON = 240; // tokens a ribbon shows; of longer sequences those around the chosen one

/**
 * A choice of a few options, all visible.
 * @param {string} label @param {Record<string, string>} options labels by value @param {string} chosen
 * @param {(value: string) => void} pick @returns {HTMLElement}
 */
export function segmented(label, options, chosen, pick) {
  const buttons = Object.entries(options).map(([value, text]) => {
    const button = element(
      "button",
      { type: "button", "data-value": value, "aria-pressed": String(value === chosen) },
      text,
    );
    button.addEventListener("click", () => pick(value));
    return button;
  });
  return element("div.segmented", { role: "group", "aria-label": label }, ...buttons);
}

/**
 * @param {Record<string, unknown>} offered @param {string | undefined} wanted what a URL says @param {string} usual
 * @returns {string} the wanted option if there is one of that name
 */
export function offeredOr(offered, wanted, usual) {
  return wanted !== undefined && Object.hasOwn(offered, wanted) ? wanted : usual;
}

/**
 * A choice of many options.
 * @param {string} label @param {Record<string, string>} options @param {string} chosen
 * @param {(value: string) => void} pick @returns {HTMLElement}
 */
export function select(label, options, chosen, pick) {
  const field = document.createElement("select");
  for (const [value, text] of Object.entries(options)) field.add(new Option(text, value, false, value === chosen));
  field.addEventListener("change", () => pick(field.value));
  return element("label.field", element("span", label), field);
}

/**
 * Controls that a narrow page folds away.
 * @param {string} title @param {HTMLElement} controls @returns {HTMLElement}
 */
export function folded(title, controls) {
  const home = /** @type {HTMLDetailsElement} */ (element("details.folded", element("summary", title), controls));
  const narrow = matchMedia("(max-width: 760px)");
  const fold = () => {
    home.open = !narrow.matches;
  };
  narrow.addEventListener("change", fold);
  fold();
  return home;
}

/**
 * Fade the edges beyond which a container can be scrolled.
 * @template {HTMLElement} T @param {T} home @returns {T}
 */
export function hinted(home) {
  const tell = () => {
    const rest = home.scrollWidth - home.clientWidth - Math.abs(home.scrollLeft);
    home.dataset.more = [Math.abs(home.scrollLeft) > 4 ? "before" : "", rest > 4 ? "after" : ""].join(" ").trim();
  };
  home.addEventListener("scroll", tell, { passive: true });
  new ResizeObserver(tell).observe(home);
  new MutationObserver(() => requestAnimationFrame(tell)).observe(home, { childList: true, subtree: true });
  return home;
}

/** @returns {boolean} whether the page is used without a pointer that hovers, as on a phone */
export function touched() {
  return matchMedia("(hover: none)").matches;
}

/**
 * A slider for a number.
 * @param {string} label
 * @param {{ low: number, high: number, step?: number, value: number, shown?: (value: number) => number }} range
 * @param {(value: number) => void} pick @returns {HTMLElement}
 */
export function slider(label, { low, high, step, value, shown = (at) => at }, pick) {
  const field = document.createElement("input");
  Object.assign(field, {
    type: "range",
    min: String(low),
    max: String(high),
    step: String(step ?? (high - low) / 200),
  });
  field.value = String(value);
  const told = element("output", digits(shown(value), 3));
  field.addEventListener("input", () => {
    told.textContent = digits(shown(Number(field.value)), 3);
    pick(Number(field.value));
  });
  return element("label.field.slider", element("span", label, told), field);
}

/**
 * @param {string} text @param {string} label what a screen reader says @param {() => void} press
 * @returns {HTMLElement}
 */
export function button(text, label, press) {
  const made = element("button.button", { type: "button", "aria-label": label, title: label }, text);
  made.addEventListener("click", press);
  return made;
}

/**
 * The tokens of a sequence in a line, with one selected; arrow keys move the selection.
 * @param {HTMLElement} home @param {import("./answers.js").Sequence} tokens @param {string} label
 * @param {number} chosen @param {(place: number) => void} pick
 */
export function ribbon(home, tokens, label, chosen, pick) {
  const focused = home.contains(document.activeElement);
  const start = clamp(chosen - RIBBON / 2, 0, Math.max(0, tokens.length - RIBBON));
  const stop = Math.min(tokens.length, start + RIBBON);
  const list = hinted(element("div.ribbon", { role: "listbox", "aria-label": label, tabindex: 0 }));
  const fill = () => {
    const items = Array.from({ length: stop - start }, (_, at) => {
      const place = start + at;
      const note = tokens.at(place)?.note;
      const attributes = {
        role: "option",
        id: `token-${place}`,
        "aria-selected": String(place === chosen),
        title: `${count(place)}${note ? `, ${note}` : ""}`,
      };
      const item = element(
        "span",
        note ? { ...attributes, "data-note": note } : attributes,
        token(nameOf(tokens, place)),
      );
      item.addEventListener("click", () => pick(place));
      return item;
    });
    list.replaceChildren(...items);
    list.setAttribute("aria-activedescendant", `token-${chosen}`);
    const on = items[chosen - start];
    if (on) list.scrollLeft = on.offsetLeft - list.clientWidth / 2 + on.offsetWidth / 2;
  };
  list.addEventListener("keydown", (event) => {
    const next = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    pick(clamp(next, 0, tokens.length - 1));
  });
  tokens.need(start, stop).then(fill, fill);
  requestAnimationFrame(fill);
  const field = document.createElement("input");
  Object.assign(field, {
    type: "number",
    min: 0,
    max: tokens.length - 1,
    value: chosen,
    ariaLabel: `${label}: position`,
  });
  field.addEventListener("change", () => pick(clamp(Math.round(Number(field.value)), 0, tokens.length - 1)));
  const jump = tokens.length > RIBBON ? [field] : [];
  home.replaceChildren(element("div.picker", element("span.caption", label), ...jump, list));
  if (focused) list.focus();
}
