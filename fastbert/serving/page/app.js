// Start: what the server serves, the tabs of the tools that fit, and the token where one is needed.

import { call, hasToken, keepToken } from "./api.js";
import { count, element, plural } from "./dom.js";
import { startLive, stopLive } from "./live.js";
import { wire } from "./tool.js";
import { TOOLS } from "./tools.js";

const AGAIN = 1000; // milliseconds until a server that gave no answer is asked again

const get = (id) => document.getElementById(id);
const tabs = get("tabs");
let connected = false;

async function connect() {
  try {
    const info = await call("info");
    get("failure").textContent = "";
    get("sign-in").hidden = true;
    get("forget").hidden = !hasToken();
    if (!connected) show(info);
    connected = true;
    startLive();
  } catch (error) {
    if (error.status === 401) return; // the form for the token says so
    if (error.status === undefined) throw error;
    get("failure").textContent = error.message;
    setTimeout(connect, AGAIN);
  }
}

function show({ models, version }) {
  get("server").hidden = false;
  const served = models.length === 1 ? models[0].name : plural(models.length, "model");
  get("served").textContent = served;
  get("version").textContent = version ? `fastbert ${version}` : "";
  get("models").append(...models.map(card));
  const tools = TOOLS.filter((tool) => models.some(tool.serves));
  for (const tool of tools) {
    const able = models.filter(tool.serves);
    wire(tool, tool.first ? able.sort((a, b) => tool.first(b) - tool.first(a)) : able, models.length > 1);
    const attributes = { id: `tab-${tool.id}`, type: "button", role: "tab", "aria-controls": tool.id };
    tabs.append(element("button", attributes, get(tool.id).dataset.tab));
  }
  if (!tools.length) {
    const routes = [...new Set(models.flatMap((model) => model.routes))].join(", ");
    get("main").append(element("p", { class: "card" }, `This page has no tool for the served models. They answer ${routes}.`));
    return;
  }
  tabs.hidden = tools.length < 2;
  const named = tools.find((tool) => `#${tool.id}` === location.hash);
  select((named ?? tools[0]).id);
}

function card(model) {
  const length = model.max_input_length && `${count(model.max_input_length)}\u00a0tokens`;
  const facts = [model.kind, model.architecture, model.dtype, length];
  const name = element("b", {}, model.name);
  return element("li", {}, name, element("span", { class: "soft small" }, facts.filter(Boolean).join(" · ")));
}

function select(id, focus = false) {
  for (const tab of tabs.children) {
    const chosen = tab.id === `tab-${id}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    get(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
}

function choose(tab) {
  const id = tab.getAttribute("aria-controls");
  select(id, true);
  history.replaceState(null, "", `#${id}`);
}

tabs.addEventListener("click", (event) => {
  if (event.target.role === "tab") choose(event.target);
});
tabs.addEventListener("keydown", (event) => {
  const all = [...tabs.children];
  const at = all.indexOf(event.target);
  const moves = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(all[moves[event.key] % all.length]);
});
addEventListener("hashchange", () => {
  const tab = get(`tab-${location.hash.slice(1)}`);
  if (tab) select(tab.getAttribute("aria-controls"));
});

document.addEventListener("unauthorized", (event) => {
  stopLive();
  const section = get("sign-in");
  get("sign-in-error").textContent = event.detail;
  if (section.hidden) {
    section.hidden = false;
    get("token").focus();
  }
});
get("sign-in").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(get("token").value);
  get("token").value = "";
  connect();
});
get("forget").addEventListener("click", () => {
  keepToken(null);
  location.reload();
});

connect();
