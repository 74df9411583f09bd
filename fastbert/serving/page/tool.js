// What all tools share: the model's selector, one request at a time, status, errors, results, and the same as curl.

import { call, hasToken } from "./api.js";
import { element } from "./dom.js";

/**
 * Wire a tool's panel. A tool has an `id`, `examples` (values of its form's fields), `serves(model)`, `request(form,
 * model)` -> {path, body}, `show(answer, body, results, model)` -> a line that sums it up, and may have `first(model)`
 * (true for models that come first), `prepare(panel, run)` and `modelChanged(panel, model)`.
 */
export function wire(tool, models, several) {
  const panel = document.getElementById(tool.id);
  const form = panel.querySelector("form");
  const select = element("select", { name: "model", id: `${tool.id}-model` });
  select.append(...models.map((model, i) => element("option", { value: i }, model.name)));
  const field = element("div", { class: "field model" }, element("label", { for: select.id }, "Model"), select);
  field.hidden = models.length < 2;
  form.prepend(field);

  const status = element("p", { class: "status soft", role: "status" });
  const error = element("p", { class: "error", role: "alert" });
  const results = element("div", { class: "results" });
  const code = element("code");
  const copy = element("button", { type: "button", class: "quiet" }, "Copy");
  copy.hidden = !navigator.clipboard; // only where the page's origin is secure
  const curl = element("details", { class: "curl" }, element("summary", {}, "The same request with curl"), element("pre", {}, code), copy);
  panel.append(error, status, results, curl);

  const model = () => models[Number(select.value)];
  let running = null;

  function request() {
    const { path, body } = tool.request(form, model());
    return { path, body: several ? { model: model().name, ...body } : body };
  }

  async function run() {
    running?.abort();
    const controller = new AbortController();
    running = controller;
    const { path, body } = request();
    const used = model();
    results.setAttribute("aria-busy", "true");
    const begin = performance.now();
    try {
      const answer = await call(path, { body, signal: controller.signal });
      const milliseconds = performance.now() - begin;
      results.replaceChildren();
      const line = shown(path, () => tool.show(answer, body, results, used));
      error.textContent = "";
      status.textContent = `${line} · ${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
    } catch (failure) {
      if (controller.signal.aborted) return;
      results.replaceChildren();
      status.textContent = "";
      error.textContent = failure.message;
    }
    if (controller === running) results.removeAttribute("aria-busy");
  }

  function forget() {
    running?.abort();
    results.replaceChildren();
    results.removeAttribute("aria-busy");
    status.textContent = error.textContent = "";
  }

  function describe() {
    if (curl.open) code.textContent = command(request());
  }

  let example = 0;
  function fill() {
    for (const [name, value] of Object.entries(tool.examples[example % tool.examples.length])) {
      form.elements[name].value = value.replaceAll("[MASK]", model().mask_token ?? "[MASK]");
    }
    example += 1;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || event.target.tagName !== "TEXTAREA") return;
    const submits = event.target.dataset.enter === "submit" && !event.shiftKey;
    if (submits || event.ctrlKey || event.metaKey) {
      event.preventDefault();
      run();
    }
  });
  form.addEventListener("input", describe);
  curl.addEventListener("toggle", describe);
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  });
  panel.querySelector(".example").addEventListener("click", () => {
    fill();
    describe();
    run();
  });
  select.addEventListener("change", () => {
    forget(); // of the other model
    tool.modelChanged?.(panel, model());
    describe();
  });
  fill();
  tool.prepare?.(panel, run);
  tool.modelChanged?.(panel, model());
}

/** Return what `show` returns; an answer of another form than the API's is an error like those of the server. */
function shown(path, show) {
  try {
    return show();
  } catch (error) {
    throw new Error(`${path}: the answer has another form: ${error.message}`, { cause: error });
  }
}

/** Return a request as a command of a POSIX shell. */
function command({ path, body }) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const words = [`curl ${quote(new URL(path, document.baseURI).href)}`];
  if (hasToken()) words.push('-H "Authorization: Bearer $TOKEN"');
  words.push("-H 'Content-Type: application/json'", `-d ${quote(JSON.stringify(body))}`);
  return words.join(" \\\n  ");
}
