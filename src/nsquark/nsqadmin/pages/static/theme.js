// Runs before the first paint, so that a page never flashes in the other theme, and the styles know of scripts.
(() => {
  document.documentElement.dataset.scripts = "";
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* storage is forbidden: the system's choice stays */ }
})();
