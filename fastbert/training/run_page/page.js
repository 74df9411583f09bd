"use strict";
// Charts of runs: each metric has a canvas; all of them share the x axis, its range, and the runs that are shown.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const AXES = { step: "optimiser step", tokens: "tokens", seconds: "seconds of training", epoch: "epoch" };
  const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
  const state = { x: "step", logX: false, logY: false, smooth: 0, train: true, validation: true, range: null };
  const hidden = new Set();
  const charts = [];

  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    Object.assign(element, properties);
    element.append(...children);
    return element;
  };
  const dash = (run) => DASHES[Math.floor(run / data.colors.length) % DASHES.length];
  const color = (run) => data.colors[run % data.colors.length];
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const text = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    if (size >= 1e12) return `${Number((value / 1e12).toPrecision(4))}T`;
    if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
    if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
    const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(4));
    return rounded.toLocaleString("en", { maximumFractionDigits: 6 });
  };

  // A curve's points (x, y) on the present axes; smoothing is an exponential mean, of training alone.
  const points = (curve, metric) => {
    const xs = curve.x[state.x], ys = curve.y[metric];
    if (!xs || !ys) return [];
    const found = [];
    let mean = null;
    for (let i = 0; i < ys.length; i++) {
      const x = xs[i];
      let y = ys[i];
      if (x === null || y === null) continue;
      if (curve.split === "train" && state.smooth > 0) {
        mean = mean === null ? y : state.smooth * mean + (1 - state.smooth) * y;
        y = mean;
      }
      if ((state.logX && x <= 0) || (state.logY && y <= 0)) continue;
      found.push([x, y]);
    }
    return found;
  };

  const ticks = (low, high, log, most) => {
    if (log) {
      const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
      const marks = [];
      for (let power = first; power <= last; power++)
        for (const factor of last - first > 3 ? [1] : [1, 2, 5]) marks.push(factor * 10 ** power);
      const inside = marks.filter((mark) => mark >= low && mark <= high);
      return inside.length > 1 ? inside : ticks(low, high, false, most);
    }
    const rough = (high - low) / most, scale = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * scale >= rough) * scale;
    const marks = [];
    for (let mark = Math.ceil(low / step) * step; mark <= high + step * 1e-6 && marks.length < 50; mark += step)
      marks.push(Math.abs(mark) < step * 1e-6 ? 0 : mark);
    return marks;
  };

  const extent = (values, log) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) return null;
    if (low === high) {
      const pad = log ? low * 0.5 : Math.abs(low) * 0.1 || 1;
      return [low - pad, high + pad];
    }
    return [low, high];
  };

  class Chart {
    constructor(metric) {
      this.metric = metric;
      this.canvas = make("canvas");
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label", `${metric} of the runs`);
      this.tip = make("div", { className: "tip", hidden: true });
      this.figure = make("figure", {}, make("figcaption", { textContent: metric }), this.canvas, this.tip);
      this.drag = null;
      this.canvas.addEventListener("pointermove", (event) => this.moved(event));
      this.canvas.addEventListener("pointerleave", () => { this.drag = null; this.tip.hidden = true; this.draw(); });
      this.canvas.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") this.drag = event.offsetX; });
      this.canvas.addEventListener("pointerup", (event) => this.released(event));
      this.canvas.addEventListener("dblclick", () => zoom(null));
    }

    layout() {
      this.series = [];
      data.runs.forEach((run, index) => {
        if (hidden.has(index)) return;
        for (const curve of run.curves) {
          if (!state[curve.split]) continue;
          const found = points(curve, this.metric);
          if (found.length) this.series.push({ run: index, curve, points: found });
        }
      });
      const xs = this.series.flatMap((series) => [series.points[0][0], series.points[series.points.length - 1][0]]);
      this.xRange = state.range || extent(xs, state.logX);
      if (!this.xRange) return false;
      const ys = [];
      for (const series of this.series)
        for (const [x, y] of series.points) if (x >= this.xRange[0] && x <= this.xRange[1]) ys.push(y);
      this.baselines = [];
      data.runs.forEach((run, index) => {
        const value = run.baselines[this.metric];
        if (value !== undefined && !hidden.has(index) && !(state.logY && value <= 0))
          this.baselines.push({ run: index, value });
      });
      this.yRange = extent(ys.concat(this.baselines.map((line) => line.value)), state.logY);
      if (!this.yRange) return false;
      if (!state.logY) {
        const pad = (this.yRange[1] - this.yRange[0]) * 0.05;
        this.yRange = [this.yRange[0] - pad, this.yRange[1] + pad];
      }
      return true;
    }

    place(value, [low, high], log, size) {
      const [a, b, v] = log ? [Math.log(low), Math.log(high), Math.log(value)] : [low, high, value];
      return ((v - a) / (b - a || 1)) * size;
    }
    px(x) { return this.left + this.place(x, this.xRange, state.logX, this.width); }
    py(y) { return this.top + this.height - this.place(y, this.yRange, state.logY, this.height); }
    value(px) {
      const share = (px - this.left) / this.width, [low, high] = this.xRange;
      return state.logX ? low * (high / low) ** share : low + share * (high - low);
    }

    draw(hover) {
      const ratio = window.devicePixelRatio || 1, box = this.canvas.getBoundingClientRect();
      if (!box.width) return;
      this.canvas.width = Math.round(box.width * ratio);
      this.canvas.height = Math.round(box.height * ratio);
      const pen = this.canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.clearRect(0, 0, box.width, box.height);
      [this.left, this.top] = [58, 10];
      [this.width, this.height] = [box.width - 82, box.height - 40];
      pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
      pen.fillStyle = ink("--soft");
      if (!this.ready) {
        pen.fillText("nothing to show for these runs", this.left, this.top + 30);
        return;
      }
      pen.strokeStyle = ink("--line");
      pen.lineWidth = 1;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (const mark of ticks(...this.yRange, state.logY, 5)) {
        const y = Math.round(this.py(mark)) + 0.5;
        pen.beginPath(); pen.moveTo(this.left, y); pen.lineTo(this.left + this.width, y); pen.stroke();
        pen.fillText(text(mark), this.left - 6, y);
      }
      pen.textAlign = "center";
      pen.textBaseline = "top";
      let free = -Infinity;
      for (const mark of ticks(...this.xRange, state.logX, Math.max(2, Math.floor(this.width / 90)))) {
        const x = this.px(mark), half = pen.measureText(text(mark)).width / 2 + 4;
        if (x - half < free || x > this.left + this.width + 1) continue;
        free = x + half;
        pen.fillText(text(mark), x, this.top + this.height + 6);
      }
      pen.fillText(AXES[state.x], this.left + this.width / 2, this.top + this.height + 19);
      pen.save();
      pen.beginPath(); pen.rect(this.left, this.top - 4, this.width, this.height + 8); pen.clip();
      for (const line of this.baselines) {
        pen.strokeStyle = color(line.run); pen.globalAlpha = 0.8; pen.setLineDash([2, 4]); pen.lineWidth = 1.4;
        pen.beginPath(); pen.moveTo(this.left, this.py(line.value)); pen.lineTo(this.left + this.width, this.py(line.value)); pen.stroke();
      }
      for (const { run, curve, points: found } of this.series) {
        const held = curve.split === "validation";
        pen.strokeStyle = pen.fillStyle = color(run);
        pen.globalAlpha = held || state.smooth > 0 ? 1 : 0.55;
        pen.lineWidth = held ? 1.8 : 1.1;
        pen.setLineDash(dash(run));
        pen.beginPath();
        found.forEach(([x, y], i) => (i ? pen.lineTo(this.px(x), this.py(y)) : pen.moveTo(this.px(x), this.py(y))));
        pen.stroke();
        pen.setLineDash([]);
        if (held || found.length === 1) {
          const size = found.length > 200 ? 0 : 2.6;
          for (const [x, y] of found) { pen.beginPath(); pen.arc(this.px(x), this.py(y), size, 0, 7); pen.fill(); }
        }
      }
      pen.globalAlpha = 1;
      if (hover) {
        pen.strokeStyle = ink("--soft"); pen.setLineDash([3, 3]); pen.lineWidth = 1;
        pen.beginPath(); pen.moveTo(hover.x, this.top); pen.lineTo(hover.x, this.top + this.height); pen.stroke();
        pen.setLineDash([]);
        for (const { series, point } of hover.nearest) {
          pen.fillStyle = color(series.run); pen.strokeStyle = ink("--back");
          pen.beginPath(); pen.arc(this.px(point[0]), this.py(point[1]), 4, 0, 7); pen.fill(); pen.stroke();
        }
        if (this.drag !== null) {
          pen.fillStyle = "#0072b2"; pen.globalAlpha = 0.15;
          pen.fillRect(Math.min(this.drag, hover.x), this.top, Math.abs(this.drag - hover.x), this.height);
        }
      }
      pen.restore();
    }

    moved(event) {
      if (!this.ready) return;
      const at = this.value(event.offsetX);
      const nearest = this.series.map((series) => {
        const found = series.points;
        let low = 0, high = found.length - 1;
        while (high - low > 1) {
          const middle = (low + high) >> 1;
          if (found[middle][0] <= at) low = middle; else high = middle;
        }
        const point = Math.abs(found[low][0] - at) <= Math.abs(found[high][0] - at) ? found[low] : found[high];
        return { series, point };
      });
      this.draw({ x: event.offsetX, nearest });
      const distance = (entry) => Math.abs(this.py(entry.point[1]) - event.offsetY);
      const shown = nearest.sort((a, b) => distance(a) - distance(b)).slice(0, 12);
      this.tip.replaceChildren(make("div", {}, shown.length ? `${AXES[state.x]} ${text(shown[0].point[0])}` : ""));
      for (const { series, point } of shown) {
        const swatch = make("span", { className: "swatch" });
        swatch.style.background = color(series.run);
        const label = [data.runs[series.run].name, series.curve.label, series.curve.split].filter(Boolean).join(", ");
        this.tip.append(make("div", {}, swatch, make("span", { className: "name", textContent: label, title: label }),
          make("b", { textContent: text(point[1]) })));
      }
      if (nearest.length > shown.length) this.tip.append(make("div", {}, `and ${nearest.length - shown.length} more`));
      this.tip.hidden = false;
      // Beside the pointer, or as close to it as the chart is wide.
      const room = this.figure.clientWidth - this.tip.offsetWidth - 4;
      const beside = event.offsetX > this.figure.clientWidth / 2 ? event.offsetX - this.tip.offsetWidth - 8 : event.offsetX + 24;
      this.tip.style.left = `${Math.max(4, Math.min(room, beside))}px`;
      this.tip.style.top = "2.2rem";
    }

    released(event) {
      const begin = this.drag;
      this.drag = null;
      if (begin === null || !this.ready || Math.abs(event.offsetX - begin) < 8) return;
      const ends = [this.value(begin), this.value(event.offsetX)].sort((a, b) => a - b);
      zoom(ends);
    }

    update() {
      this.ready = this.layout();
      this.draw();
    }
  }

  const update = () => charts.forEach((chart) => chart.update());
  const zoom = (range) => {
    state.range = range;
    byId("reset").hidden = range === null;
    update();
  };

  const cell = (value) => make("td", { textContent: text(value), className: typeof value === "number" ? "number" : "" });
  const header = (first) => make("thead", {}, make("tr", {}, ...[first, ...data.runs.map((run) => run.name)].map(
    (name) => make("th", { textContent: name, scope: "col" }))));

  const showSettings = () => {
    const all = byId("all-settings").checked, body = make("tbody");
    for (const [name, values] of data.settings) {
      const differs = new Set(values.map((value) => JSON.stringify(value))).size > 1;
      if (!differs && !all && data.runs.length > 1) continue;
      const row = make("tr", { className: differs && all ? "differs" : "" }, make("th", { textContent: name, scope: "row" }));
      row.append(...values.map(cell));
      body.append(row);
    }
    if (!body.children.length) body.append(make("tr", {}, make("td", { textContent: "no setting differs", colSpan: data.runs.length + 1 })));
    byId("settings").replaceChildren(header("setting"), body);
  };

  const showLast = () => {
    const body = make("tbody");
    for (const [name, values] of data.last) body.append(make("tr", {}, make("th", { textContent: name, scope: "row" }), ...values.map(cell)));
    byId("last").replaceChildren(header("metric"), body);
  };

  const showRuns = () => {
    data.runs.forEach((run, index) => {
      const box = make("input", { type: "checkbox", checked: true });
      box.addEventListener("change", () => { box.checked ? hidden.delete(index) : hidden.add(index); update(); });
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = color(index);
      byId("runs").append(make("label", { title: run.path }, box, swatch, make("span", { className: "name", textContent: run.name })));
    });
  };

  for (const name of data.axes) byId("x").append(make("option", { value: name, textContent: AXES[name] || name }));
  state.x = data.axes.includes(data.x) ? data.x : data.axes[0];
  byId("x").value = state.x;
  byId("x").addEventListener("change", (event) => { state.x = event.target.value; zoom(null); });
  for (const [id, key] of [["log-x", "logX"], ["log-y", "logY"], ["training", "train"], ["validation", "validation"]])
    byId(id).addEventListener("change", (event) => {
      state[key] = event.target.checked;
      if (key === "logX") state.range = null;
      zoom(state.range);
    });
  byId("smooth").addEventListener("input", (event) => {
    state.smooth = Number(event.target.value);
    byId("smooth-value").textContent = event.target.value;
    update();
  });
  byId("reset").addEventListener("click", () => zoom(null));
  byId("all-settings").addEventListener("change", showSettings);
  byId("about").textContent = data.about;

  for (const metric of data.metrics) {
    const chart = new Chart(metric);
    charts.push(chart);
    byId("charts").append(chart.figure);
  }
  showRuns();
  showLast();
  showSettings();
  update();
  new ResizeObserver(() => charts.forEach((chart) => chart.draw())).observe(byId("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
})();
