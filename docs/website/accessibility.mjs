// Check every page of a built site with axe-core, in light and dark, on a desktop and a phone: 0 violations expected.
// Also fails if a page requests anything that is not a file of the site, logs an error, or is wider than the window.
//
//   python docs/build_site.py
//   npm install --prefix build/node axe-core@4 puppeteer-core@24
//   NODE_PATH=build/node/node_modules CHROMIUM=/usr/bin/chromium node docs/website/accessibility.mjs [PAGE ...]
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(import.meta.url);
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const html = resolve(process.env.SITE ?? join(root, "build", "site", "html"));
const named = process.argv.slice(2);
const all = readdirSync(html, { recursive: true }).filter((name) => name.endsWith(".html")).sort();
const pages = named.length ? named : [...all, "search.html?q=attention"];
const views = [
  { theme: "light", width: 1280 },
  { theme: "dark", width: 1280 },
  { theme: "light", width: 390 },
  { theme: "dark", width: 390 },
];
const widths = [320, 800, 1080, 1330, 1440, 1920]; // whose layouts differ; no page is wider

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
let mistakes = 0;
const report = (line) => {
  mistakes += 1;
  console.log(line);
};
const page = await browser.newPage();
let current = "";
const measure = async () => {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  if (wide > 0) report(`${current}: ${wide} pixels wider than the window`);
};
page.on("request", (request) => {
  if (!/^(file|data|blob):/.test(request.url())) report(`${current}: requests ${request.url()}`);
});
page.on("requestfailed", (request) => report(`${current}: cannot load ${request.url()}: ${request.failure()?.errorText}`));
page.on("pageerror", (error) => report(`${current}: ${error.message}`));
for (const name of pages) {
  for (const { theme, width } of views) {
    current = `${name} (${theme}, ${width})`;
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
    await page.goto(new URL(name, `${pathToFileURL(html).href}/`).href, { waitUntil: "load" });
    if (name.includes("?")) await page.waitForSelector("#search-results li", { timeout: 20_000 });
    await measure();
    await page.evaluate(axe);
    const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"], preload: false }));
    for (const violation of found.violations) {
      const nodes = violation.nodes.slice(0, 3).map((node) => `${node.target.join(" ")} ${node.any?.[0]?.message ?? ""}`);
      report(`${current}: ${violation.id} x${violation.nodes.length}: ${nodes.join(" | ")}`);
    }
  }
  for (const width of widths) {
    current = `${name} (${width})`;
    await page.setViewport({ width, height: 900 });
    await measure();
  }
}
await browser.close();
console.log(`${pages.length} pages in ${views.length} views: ${mistakes} mistakes`);
process.exit(mistakes ? 1 : 0);
