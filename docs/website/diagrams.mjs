// Draw the mermaid diagrams of the pages for the site, as docs/images/diagrams/<hash of the text>.svg. GitHub draws its
// own. After a change of a diagram, with Node and Chromium:
//
//   npm install --prefix build/node mermaid@11 puppeteer-core@24
//   NODE_PATH=build/node/node_modules CHROMIUM=/usr/bin/chromium node docs/website/diagrams.mjs
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const puppeteer = require("puppeteer-core");
const mermaid = join(dirname(require.resolve("mermaid/package.json")), "dist", "mermaid.min.js");
const docs = dirname(dirname(fileURLToPath(import.meta.url)));
const out = join(docs, "images", "diagrams");

const files = readdirSync(docs, { recursive: true }).filter((name) => name.endsWith(".md"));
const texts = files.flatMap((name) => [
  ...readFileSync(join(docs, name), "utf8").matchAll(/^```mermaid\n([\s\S]*?)^```$/gm),
].map((match) => match[1]));

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
const page = await browser.newPage();
await page.setContent("<body></body>");
await page.addScriptTag({ path: mermaid });
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
for (const [number, text] of texts.entries()) {
  const svg = await page.evaluate(async (text, id) => {
    mermaid.initialize({
      startOnLoad: false,
      htmlLabels: false,
      flowchart: { htmlLabels: false },
      theme: "base",
      themeVariables: { primaryColor: "#e7f0f8", primaryBorderColor: "#0b5fa5", fontFamily: "sans-serif" },
    });
    const drawn = (await mermaid.render(id, text)).svg;
    // An image has no size of its own in a page unless it says so, and its text stands on white in the dark too.
    const element = new DOMParser().parseFromString(drawn, "image/svg+xml").documentElement;
    const [, , width, height] = element.getAttribute("viewBox").split(" ").map(Number);
    element.setAttribute("width", Math.round(width));
    element.setAttribute("height", Math.round(height));
    element.style.background = "#fff";
    return new XMLSerializer().serializeToString(element);
  }, text, `diagram-${number}`);
  const hash = createHash("sha256").update(text).digest("hex").slice(0, 12);
  writeFileSync(join(out, `${hash}.svg`), `${svg}\n`);
  console.log(`${hash}.svg`);
}
await browser.close();
