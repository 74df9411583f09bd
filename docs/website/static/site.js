// What a keyboard and a screen reader need beyond Furo's pages.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false; // excerpts are fetched, which a page opened as a file may not
}
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  if (!document.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.className = "visually-hidden";
    heading.textContent = document.title;
    document.querySelector("article")?.prepend(heading);
  }
  // Pictures that are wider than a phone scroll there; what is drawn in them would be too small to read.
  const widen = (image) => {
    const box = image.parentElement;
    if (image.naturalWidth > 640 && !box.textContent.trim()) box.classList.add("chart");
  };
  for (const image of document.querySelectorAll("article p > img:only-child")) {
    if (image.complete) widen(image);
    else image.addEventListener("load", () => { widen(image); mark(); });
  }
  // Code and tables that are wider than the window scroll; arrow keys scroll what has the focus.
  const mark = () => {
    for (const box of document.querySelectorAll("article pre, article .table-wrapper, .diagram, .chart")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  mark();
  window.addEventListener("resize", mark);
});
