// A text's pieces, and the attention of one layer: shaded pieces, a heat map, and a table with the same numbers.

import { element, percent, plural } from "./dom.js";
import { drawHeatMap } from "./heatmap.js";

const MOST_DRAWN = 256; // pieces of a heat map; more would be less than a pixel each
const MOST_COLUMNS = 32; // of a table; above, rows list where their attention is highest
const HIGHEST = 5;

const attends = (model) => model.routes.includes("/attention");

export const attention = {
  id: "attention",
  serves: (model) => attends(model) || model.routes.includes("/tokenize"),
  examples: [
    { text: "The animal didn't cross the street because it was too tired." },
    { text: "Unbelievably, the internationalization team reprogrammed everything." },
    { text: "The trophy does not fit into the suitcase because it is too big." },
  ],
  request(form, model) {
    const text = form.elements.text.value;
    if (!attends(model)) return { path: "tokenize", body: { inputs: [text] } };
    const { layer, head } = form.elements;
    const body = { inputs: text, layer: Number(layer.value), head: head.value === "" ? null : Number(head.value) };
    return { path: "attention", body };
  },
  show(answer, body, results) {
    if (Array.isArray(answer)) {
      results.append(pieces(answer[0]));
      return plural(answer[0].length, "piece");
    }
    offer(answer);
    const line = plural(answer.tokens.length, "piece");
    const tokens = answer.tokens.slice(0, MOST_DRAWN);
    const drawn = answer.attention.slice(0, MOST_DRAWN).map((row) => row.slice(0, MOST_DRAWN));
    showAttention(tokens, drawn, results);
    return tokens.length < answer.tokens.length ? `${line}, the first ${MOST_DRAWN} shown` : line;
  },
  prepare(panel, run) {
    for (const label of panel.querySelectorAll(".where")) label.addEventListener("change", run);
  },
  modelChanged(panel, model) {
    for (const label of panel.querySelectorAll(".where")) label.hidden = !attends(model);
    const { layer, head } = panel.querySelector("form").elements;
    layer.replaceChildren(element("option", { value: -1 }, "last"));
    head.replaceChildren(element("option", { value: "" }, "mean"));
  },
};

/** Offer the layers and heads that the model has, numbered as the API does. */
function offer({ layers, heads }) {
  const { layer, head } = document.querySelector("#attention form").elements;
  if (layer.length !== layers + 1) {
    for (let i = 0; i < layers; i += 1) layer.append(element("option", { value: i }, i));
  }
  if (head.length !== heads + 1) {
    for (let i = 0; i < heads; i += 1) head.append(element("option", { value: i }, i));
  }
}

function pieces(tokens) {
  const list = element("ol", { class: "pieces" });
  for (const token of tokens) {
    const id = element("span", { class: "id" }, token.id);
    const piece = element("span", { class: token.special ? "piece special" : "piece" }, element("bdi", {}, token.text), id);
    list.append(element("li", {}, piece));
  }
  return list;
}

function showAttention(tokens, matrix, results) {
  const chips = element("ol", { class: "pieces" });
  const buttons = tokens.map((token) => {
    const id = element("span", { class: "id" }, token.id);
    const names = token.special ? "piece special" : "piece";
    return element("button", { type: "button", class: names, "aria-pressed": "false" }, element("bdi", {}, token.text), id);
  });
  chips.append(...buttons.map((button) => element("li", {}, button)));
  const chosen = element("p", { class: "readout", role: "status" });
  const map = element("div");
  const table = element("details", { class: "as-table" }, element("summary", {}, "The attention as a table"));
  results.append(chips, chosen, map, table);

  function choose(row) {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === row));
      button.style.setProperty("--weight", matrix[row][i].toFixed(4));
    });
    chosen.replaceChildren(element("b", {}, element("bdi", {}, tokens[row].text)), ` attends to ${highest(tokens, matrix[row])}`);
  }
  buttons.forEach((button, row) => button.addEventListener("click", () => choose(row)));
  choose(Math.max(0, tokens.findIndex((token) => !token.special)));
  drawHeatMap(map, tokens.map((token) => token.text), matrix);
  table.addEventListener("toggle", () => {
    if (table.open && table.childElementCount === 1) table.append(asTable(tokens, matrix));
  });
}

function highest(tokens, weights) {
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, HIGHEST);
  return order.map((i) => `${tokens[i].text} ${percent(weights[i])}`).join(", ");
}

function asTable(tokens, matrix) {
  const whole = tokens.length <= MOST_COLUMNS;
  const names = whole ? tokens.map((token) => token.text) : [`Attends most to`];
  const head = element("tr", {}, element("th", { scope: "col" }, "Piece"));
  head.append(...names.map((name) => element("th", { scope: "col" }, name)));
  const rows = matrix.map((weights, i) => {
    const cells = whole ? weights.map((weight) => (100 * weight).toFixed(1)) : [highest(tokens, weights)];
    const first = element("th", { scope: "row" }, tokens[i].text);
    return element("tr", {}, first, ...cells.map((cell) => element("td", {}, cell)));
  });
  const caption = element("caption", {}, "Percent of the attention that the piece of each row pays to each column.");
  const made = element("table", {}, whole ? caption : "", element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attention as a table" }, made);
}
