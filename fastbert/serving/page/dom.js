// Elements made from text alone: nothing that a server or a person wrote is ever parsed as HTML.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

const NARROW_SPACE = "\u202f";

/** Return a share of 1 as a percentage with about three digits. */
export function percent(share) {
  const value = 100 * share;
  if (value > 0 && value < 0.01) return `<0.01${NARROW_SPACE}%`;
  return `${value.toFixed(value >= 10 ? 1 : 2)}${NARROW_SPACE}%`;
}

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const largeCounts = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Return a count for reading: 1,234 or 12.3M. */
export function count(value) {
  return value < 100_000 ? counts.format(value >= 100 ? Math.round(value) : value) : largeCounts.format(value);
}

/** Return the text with spaces that would not be seen made visible. */
export function visible(text) {
  return text.trim() || text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(/\s/g, "␣") || "(empty)";
}

/** Return a bar that is filled to a share between 0 and 1. */
export function bar(share) {
  const made = element("span", { class: "bar", "aria-hidden": "true" });
  made.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  return made;
}

/** Return the word for a number of things: "1 text", "3 texts". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
