// Set the theme before the first paint, so this is no module: those run after the document is parsed. Without a choice
// the page follows the system; choosing what the system has is no choice any more.
(() => {
  const KEY = "fastbert-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  function remembered() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is blocked
    }
  }

  function remember(theme) {
    try {
      if (theme) localStorage.setItem(KEY, theme);
      else localStorage.removeItem(KEY);
    } catch {
      // The choice then lasts as long as the page.
    }
  }

  function choose(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    document.getElementById("theme")?.setAttribute("aria-pressed", String(dark()));
    document.dispatchEvent(new Event("themechange"));
  }

  const theme = remembered();
  choose(theme === "dark" || theme === "light" ? theme : null);
  system.addEventListener("change", () => choose(root.dataset.theme));
  document.addEventListener("DOMContentLoaded", () => {
    choose(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const next = dark() ? "light" : "dark";
      const chosen = (next === "dark") === system.matches ? null : next;
      remember(chosen);
      choose(chosen);
    });
  });
})();
