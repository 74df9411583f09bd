// A heat map on a canvas: rows attend to columns. Pointer and arrow keys move over its cells.

import { element, percent } from "./dom.js";

const SMALLEST = 3; // pixels of a cell
const LARGEST = 36;
const READABLE = 11; // the smallest cell beside which a name fits
const MOST_HEIGHT = 0.85; // of the window
const LONGEST = 96; // pixels of a name

export function drawHeatMap(into, names, matrix) {
  const size = names.length;
  const canvas = element("canvas", {
    class: "heat",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "heat map",
    "aria-label": `Attention between ${size} pieces. Arrow keys move over it; a table with the same numbers follows.`,
  });
  const cursor = element("span", { class: "cursor", hidden: true });
  const readout = element("p", { class: "readout", role: "status" });
  const scroll = element("div", { class: "scroll" }, element("div", { class: "heat-box" }, canvas, cursor));
  const most = matrix.reduce((highest, row) => Math.max(highest, ...row), 0);
  const legend = element("p", { class: "legend soft small", "aria-hidden": "true" });
  legend.append("0", element("span", { class: "ramp" }), percent(most));
  into.append(scroll, element("div", { class: "under" }, readout, legend));

  let cell = 0;
  let margin = 0;
  let row = 0;
  let column = 0;

  function draw() {
    const style = getComputedStyle(canvas);
    const context = canvas.getContext("2d");
    context.font = `12px ${style.fontFamily}`;
    const longest = Math.min(LONGEST, Math.max(...names.map((name) => context.measureText(name).width)));
    const width = into.clientWidth;
    margin = Math.ceil(longest) + 12;
    const space = Math.min(width, MOST_HEIGHT * innerHeight) - margin - 1;
    cell = Math.floor(Math.min(LARGEST, Math.max(READABLE, space / size)));
    const text = Math.min(12, cell - 1);
    if (size * READABLE > 2 * width) {
      // Names would make it more than two screens wide.
      margin = 0;
      cell = Math.max(SMALLEST, Math.floor(width / size));
    }
    const side = margin + size * cell + 1;
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.height = Math.round(side * ratio);
    canvas.style.width = canvas.style.height = `${side}px`;
    context.scale(ratio, ratio);
    context.fillStyle = style.color;
    const gap = cell > 8 ? 1 : 0;
    matrix.forEach((weights, i) => {
      weights.forEach((weight, j) => {
        // Its square root: most weights are small, and [SEP] often takes nearly all.
        context.globalAlpha = Math.max(0.03, Math.sqrt(weight / (most || 1)));
        context.fillRect(margin + j * cell, margin + i * cell, cell - gap, cell - gap);
      });
    });
    context.globalAlpha = 1;
    if (margin) drawNames(context, `${text}px ${style.fontFamily}`, style.getPropertyValue("outline-color"));
    mark();
  }

  function drawNames(context, font, color) {
    context.fillStyle = color;
    context.font = font;
    context.textBaseline = "middle";
    names.forEach((name, i) => {
      const words = shortened(context, name);
      const middle = margin + (i + 0.5) * cell;
      context.textAlign = "right";
      context.fillText(words, margin - 6, middle);
      context.save();
      context.translate(middle, margin - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(words, 0, 0);
      context.restore();
    });
  }

  function mark() {
    cursor.style.left = `${margin + column * cell}px`;
    cursor.style.top = `${margin + row * cell}px`;
    cursor.style.width = cursor.style.height = `${cell}px`;
  }

  function visit(nextRow, nextColumn) {
    row = Math.min(size - 1, Math.max(0, nextRow));
    column = Math.min(size - 1, Math.max(0, nextColumn));
    cursor.hidden = false;
    mark();
    const name = (i) => element("bdi", {}, names[i]);
    readout.replaceChildren(name(row), " → ", name(column), ` ${percent(matrix[row][column])}`);
  }

  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    visit(row + move[0], column + move[1]);
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  canvas.addEventListener("focus", () => visit(row, column));
  canvas.addEventListener("pointermove", (event) => {
    const nextRow = Math.floor((event.offsetY - margin) / cell);
    const nextColumn = Math.floor((event.offsetX - margin) / cell);
    if (nextRow >= 0 && nextColumn >= 0) visit(nextRow, nextColumn);
  });

  let width = 0;
  const observer = new ResizeObserver(() => {
    if (!into.isConnected) return stop();
    if (into.clientWidth === width || !into.clientWidth) return undefined;
    width = into.clientWidth;
    return draw();
  });
  function stop() {
    observer.disconnect();
    document.removeEventListener("themechange", redraw);
  }
  function redraw() {
    if (into.isConnected) draw();
    else stop();
  }
  observer.observe(into);
  document.addEventListener("themechange", redraw);
}

function shortened(context, name) {
  if (context.measureText(name).width <= LONGEST) return name;
  let length = name.length;
  while (length > 1 && context.measureText(`${name.slice(0, length)}…`).width > LONGEST) length -= 1;
  return `${name.slice(0, length)}…`;
}
