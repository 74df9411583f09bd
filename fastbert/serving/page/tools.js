// The tools: which models they serve, what they ask and how they show the answer. Texts go as batches of one, whose
// answers have the same shape for every endpoint: a list with one item per text.

import { attention } from "./attention.js";
import { bar, element, percent, plural, visible } from "./dom.js";

const has = (route) => (model) => model.routes.includes(route);

const fill = {
  id: "fill",
  serves: has("/fill_mask"),
  examples: [
    { text: "Paris is the [MASK] of France, and Rome is the [MASK] of Italy." },
    { text: "She opened the window because the room was too [MASK]." },
    { text: "The [MASK] barked all night, so nobody could [MASK]." },
  ],
  request: (form) => ({
    path: "fill_mask",
    body: { inputs: [form.elements.text.value], top_k: Number(form.elements.top_k.value) },
  }),
  show([blanks], body, results, model) {
    const texts = body.inputs[0].split(model.mask_token);
    const words = blanks.map(([best]) => element("mark", {}, inSentence(best.token_str)));
    const sentence = element("p", { class: "sentence", dir: "auto" });
    texts.forEach((text, i) => sentence.append(text, i < texts.length - 1 ? words[i] ?? model.mask_token : ""));
    results.append(sentence);
    const lists = element("div", { class: "blanks" });
    blanks.forEach((candidates, i) => {
      const legend = blanks.length > 1 ? `Blank ${i + 1}` : "Candidates";
      const list = element("fieldset", { class: "bars" }, element("legend", {}, legend));
      candidates.forEach((candidate, j) => {
        const radio = element("input", { type: "radio", name: `blank-${i}`, class: "unseen", checked: j === 0 });
        radio.addEventListener("change", () => (words[i].textContent = inSentence(candidate.token_str)));
        list.append(row("label", visible(candidate.token_str), candidate.score, percent(candidate.score), radio));
      });
      lists.append(list);
    });
    results.append(lists);
    return blanks.map(([best]) => `${visible(best.token_str)} ${percent(best.score)}`).join(", ");
  },
  prepare(panel) {
    const text = panel.querySelector("textarea");
    panel.querySelector(".insert-mask").addEventListener("click", () => {
      text.setRangeText(panel.querySelector(".mask-token").textContent, text.selectionStart, text.selectionEnd, "end");
      text.dispatchEvent(new Event("input", { bubbles: true }));
      text.focus();
    });
  },
  modelChanged(panel, model) {
    const text = panel.querySelector("textarea");
    const marks = panel.querySelectorAll(".mask-token");
    const former = marks[0].textContent;
    text.value = text.value.replaceAll(former, model.mask_token);
    for (const mark of marks) mark.textContent = model.mask_token;
  },
};

/** Return a candidate as a part of its sentence: without the marks of pieces inside words. */
function inSentence(token) {
  return visible(token.replace(/^##(?=.)/, ""));
}

/** Return a line of a chart: name, bar, value. */
function row(tag, name, share, value, ...first) {
  const words = element("bdi", { class: "name" }, name);
  return element(tag, { class: "row" }, ...first, words, bar(share), element("span", { class: "value" }, value));
}

const similarity = {
  id: "similarity",
  serves: has("/similarity"),
  examples: [
    { first: "A man is playing the guitar on stage.", second: "Somebody performs music for an audience." },
    { first: "The bank raised its interest rate.", second: "They had lunch on the bank of the river." },
    { first: "How do I reset my password?", second: "I cannot log in to my account any more." },
  ],
  request: (form) => ({
    path: "similarity",
    body: { inputs: { source_sentence: form.elements.first.value, sentences: [form.elements.second.value] } },
  }),
  show([value], body, results) {
    const scale = element("div", { class: "scale", "aria-hidden": "true" }, element("span", { class: "fill" }));
    scale.style.setProperty("--from", String(Math.max(-1, Math.min(0, value))));
    scale.style.setProperty("--length", String(Math.min(1, Math.abs(value))));
    const marks = element("div", { class: "marks soft small", "aria-hidden": "true" });
    marks.append(...["−1", "0", "1"].map((mark) => element("span", {}, mark)));
    results.append(element("p", { class: "score" }, minus(value.toFixed(3))), scale, marks);
    return `Similarity ${minus(value.toFixed(3))}`;
  },
};

const minus = (text) => text.replace("-", "−");

const rank = {
  id: "rank",
  serves: (model) => has("/rerank")(model) || has("/similarity")(model),
  first: has("/rerank"),
  examples: [
    {
      query: "How do plants make their food?",
      texts: [
        "The stock market closed higher on Friday.",
        "Photosynthesis turns sunlight, water and carbon dioxide into sugar.",
        "Most plants take up minerals through their roots.",
        "Leaves are green because chlorophyll absorbs red and blue light.",
        "A recipe for vegetable soup with beans.",
      ].join("\n"),
    },
    {
      query: "treatment of a sprained ankle",
      texts: [
        "Rest, ice, compression and elevation help in the first two days.",
        "The ankle joins the foot with the leg.",
        "Marathon runners train for months.",
        "See a doctor if you cannot put weight on the foot.",
      ].join("\n"),
    },
  ],
  request(form, model) {
    const query = form.elements.query.value;
    const texts = form.elements.texts.value.split("\n").filter((line) => line.trim());
    if (has("/rerank")(model)) return { path: "rerank", body: { query, texts } };
    return { path: "similarity", body: { inputs: { source_sentence: query, sentences: texts } } };
  },
  show(answer, body, results) {
    const texts = body.texts ?? body.inputs.sentences;
    const ranked = body.texts ? answer : answer.map((score, index) => ({ index, score }));
    if (!body.texts) ranked.sort((a, b) => b.score - a.score);
    const list = element("ol", { class: "bars ranking" });
    list.append(...ranked.map(({ index, score }) => row("li", texts[index], score, minus(score.toFixed(3)))));
    results.append(list);
    return `${plural(texts.length, "text")} ranked`;
  },
};

const classify = {
  id: "classify",
  // Of taggers and other tasks, /predict has examples and answers of other forms.
  serves: (model) => has("/predict")(model) && model.kind !== "tagger" && model.kind !== "task",
  first: (model) => model.kind === "classifier",
  examples: [
    { text: "What a wonderful film, I laughed from the first minute to the last.", second: "" },
    { text: "The delivery was late and the box was damaged.", second: "" },
  ],
  request(form) {
    const second = form.elements.second.value;
    const text = form.elements.text.value;
    return { path: "predict", body: { inputs: [second ? [text, second] : [text]] } };
  },
  show([labels], body, results, model) {
    // Models of regression answer plain numbers.
    const isShare = model.task !== "regression" && labels.every(({ score }) => score >= 0 && score <= 1);
    const value = (score) => (isShare ? percent(score) : minus(score.toFixed(3)));
    const list = element("ol", { class: "bars" });
    list.append(...labels.map(({ label, score }) => row("li", label, score, value(score))));
    results.append(list);
    return `${labels[0].label} ${value(labels[0].score)}`;
  },
};

const HUES = 6; // of the classes kind-0 ... in style.css

const entities = {
  id: "entities",
  serves: has("/token_classification"),
  examples: [
    { text: "Marie Curie was born in Warsaw and worked at the University of Paris, where Pierre Curie taught." },
    { text: "In 1969 Neil Armstrong walked on the Moon; NASA had launched Apollo 11 from Florida." },
  ],
  request: (form) => ({ path: "token_classification", body: { inputs: [form.elements.text.value] } }),
  show([spans], body, results) {
    const kinds = [...new Set(spans.map((span) => span.entity_group))];
    const kind = (span) => `kind-${kinds.indexOf(span.entity_group) % HUES}`;
    // The server counts characters as Python does, in code points.
    const characters = Array.from(body.inputs[0]);
    const text = element("p", { class: "sentence", dir: "auto" });
    let end = 0;
    for (const span of spans) {
      text.append(characters.slice(end, span.start).join(""));
      const words = characters.slice(span.start, span.end).join("");
      text.append(element("mark", { class: kind(span) }, words, element("small", {}, span.entity_group)));
      end = span.end;
    }
    text.append(characters.slice(end).join(""));
    results.append(text);
    if (spans.length) {
      const head = element("tr");
      head.append(...["Entity", "Label", "Score"].map((name) => element("th", { scope: "col" }, name)));
      const rows = spans.map((span) => {
        const words = characters.slice(span.start, span.end).join("");
        const cells = [element("bdi", {}, words), span.entity_group, percent(span.score)];
        return element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
      });
      results.append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
    }
    return spans.length === 1 ? "1 entity" : `${spans.length} entities`;
  },
};

export const TOOLS = [fill, similarity, rank, attention, classify, entities];
