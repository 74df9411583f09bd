// Live throughput: /stats once per second while the page is seen.

import { call } from "./api.js";
import { count } from "./dom.js";

const EVERY = 1000; // milliseconds
const POINTS = 60; // of a chart, one per second
const HEIGHT = 20; // of its view box

const get = (id) => document.getElementById(id);
let timer = null;
let running = null;
let on = false;

/** Begin to poll, or begin again after an error that stopped it. */
export function startLive() {
  on = true;
  poll();
}

/** Stop polling until `startLive`. */
export function stopLive() {
  on = false;
  pause();
}

function pause() {
  clearTimeout(timer);
  running?.abort();
  running = null;
}

async function poll() {
  pause();
  if (!on || document.hidden) return;
  const controller = new AbortController();
  running = controller;
  const begin = performance.now();
  try {
    show(await call("stats", { signal: controller.signal }));
    get("live-state").textContent = "";
  } catch (error) {
    if (controller.signal.aborted) return;
    get("live-state").textContent = error.message;
    if (error.status === 404) on = false; // an older server, or one that keeps its numbers to itself
  }
  if (on && controller === running) timer = setTimeout(poll, Math.max(0, EVERY - (performance.now() - begin)));
}

document.addEventListener("visibilitychange", poll);

function show(stats) {
  get("requests-rate").textContent = count(stats.requests_per_second);
  get("tokens-rate").textContent = count(stats.tokens_per_second);
  get("requests").textContent = count(stats.requests);
  get("tokens").textContent = count(stats.tokens);
  get("running").textContent = count(stats.running_requests);
  get("queued").textContent = count(stats.queued_tokens);
  get("uptime").textContent = duration(stats.uptime_seconds);
  chart(get("requests-chart"), "Requests", stats.history.map((pair) => pair[0]));
  chart(get("tokens-chart"), "Tokens", stats.history.map((pair) => pair[1]));
}

function chart(svg, what, values) {
  const highest = Math.max(0, ...values);
  svg.setAttribute("aria-label", `${what} per second of the last minute, at most ${count(highest)}`);
  const first = POINTS - values.length;
  const points = values.map((value, i) => `${first + i} ${(HEIGHT - 1 - (HEIGHT - 2) * (value / (highest || 1))).toFixed(2)}`);
  const line = points.length > 1 ? `M${points.join("L")}` : "";
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", line && `${line}L${POINTS - 1} ${HEIGHT}L${first} ${HEIGHT}Z`);
}

/** Return seconds in the two largest units that they fill. */
function duration(seconds) {
  const units = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
  let first = units.findIndex(([, length]) => seconds >= length);
  if (first < 0) first = units.length - 1;
  let rest = Math.floor(seconds);
  const words = units.slice(first, first + 2).map(([unit, length]) => {
    const number = Math.floor(rest / length);
    rest -= number * length;
    return `${number} ${unit}`;
  });
  return words.join(" ");
}
