// Dialogs, actions, the theme and the keyboard. Every link and form works without it: then a page is loaded instead.
import { parse, refresh } from "./live.js";

const dialog = document.querySelector("dialog");

// ---- a link with data-dialog shows the <main> of its page in a dialog

function show(page) {
  const content = page.querySelector("main .card") ?? page.querySelector("main");
  dialog.replaceChildren(document.adoptNode(content));
  const heading = dialog.querySelector("h1, h2");
  if (heading) {
    heading.id = "dialog-title";
    dialog.setAttribute("aria-labelledby", heading.id);
  }
  arm(dialog);
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, button, a"))?.focus();
}

async function open(url) {
  try {
    show(await parse(await fetch(url, { headers: { "X-Refresh": "1" } })));
  } catch {
    location.href = url;
  }
}

document.addEventListener("click", (event) => {
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
  const link = event.target.closest("a[data-dialog]");
  if (link && plain) {
    event.preventDefault();
    link.closest("details")?.removeAttribute("open");
    open(link.href);
  }
  if (event.target.closest("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  }
  for (const menu of document.querySelectorAll("details.more[open]")) {
    if (!menu.contains(event.target)) menu.removeAttribute("open");
  }
});

// ---- a menu opens above everything, also out of a table that scrolls

function placeMenu(menu) {
  const box = menu.querySelector("div");
  const place = menu.querySelector("summary").getBoundingClientRect();
  const below = place.bottom + box.offsetHeight < innerHeight;
  box.style.top = `${below ? place.bottom : Math.max(0, place.top - box.offsetHeight)}px`;
  box.style.left = `${Math.max(8, place.right - box.offsetWidth)}px`;
}

const placeMenus = () => document.querySelectorAll("details.more[open]").forEach(placeMenu);
for (const kind of ["toggle", "scroll", "refreshed"]) document.addEventListener(kind, placeMenus, true);
addEventListener("resize", placeMenus);

// ---- a form in the dialog is sent from there; what it did is told there

dialog.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  event.preventDefault();
  const button = event.submitter;
  const fields = new URLSearchParams(new FormData(form, button));
  if (button) button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body: fields, signal: AbortSignal.timeout(60000) });
    show(await parse(answer));
    refresh();
  } catch {
    const notice = document.createElement("p");
    notice.className = "notice bad";
    notice.setAttribute("role", "alert");
    notice.textContent = "nsqadmin did not answer. The action may or may not have been done: look before you repeat it.";
    form.prepend(notice);
    if (button) button.disabled = false;
  }
});

// ---- the name must be typed before it is destroyed

function arm(root) {
  for (const button of root.querySelectorAll("[data-needs-confirm]")) button.disabled = true;
}
arm(document);

document.addEventListener("input", (event) => {
  const wanted = event.target.dataset?.confirm;
  if (wanted !== undefined) event.target.form.querySelector("[data-needs-confirm]").disabled = event.target.value !== wanted;
});

// ---- the theme: the system's, then the other one, and back

document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* it holds for this page */ }
  document.dispatchEvent(new CustomEvent("themed"));
});

// ---- the keyboard

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.more[open]")) {
    menu.removeAttribute("open");
    menu.querySelector("summary").focus();
  }
  if (event.target.closest("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector(".find input").focus();
  }
});

// ---- filters are sent when the reader stops typing

for (const input of document.querySelectorAll("input[data-filter]")) {
  let wait = 0;
  input.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      const url = new URL(location.href);
      url.searchParams.set(input.name, input.value);
      url.searchParams.delete("page");
      history.replaceState(null, "", url);
      refresh();
    }, 250);
  });
}

// ---- Graphite's pictures: the chosen timeframe holds on every page, and once a minute there are new ones

const section = document.querySelector("#graphite");
if (section) {
  const url = new URL(location.href);
  const chosen = url.searchParams.get("t");
  try {
    const known = localStorage.getItem("graph_interval");
    if (chosen) localStorage.setItem("graph_interval", chosen);
    else if (known) {
      url.searchParams.set("t", known);
      history.replaceState(null, "", url);
      refresh();
    }
  } catch { /* nothing is remembered */ }
  setInterval(() => {
    if (!document.hidden) for (const picture of section.querySelectorAll("img")) picture.src = picture.getAttribute("src");
  }, 60000);
}

// ---- the counter runs on between two looks

let shown = null;
function count() {
  const output = document.querySelector("[data-counter]");
  if (!output) return;
  const total = Number(output.dataset.counter);
  const rate = Number(output.dataset.rate || 0);
  const from = shown === null || total < shown ? total : shown;
  const begun = performance.now();
  const step = () => {
    const seconds = (performance.now() - begun) / 1000;
    shown = Math.min(Math.round(from + Math.max(rate, (total - from) / 4) * seconds), Math.max(total, from));
    output.textContent = shown.toLocaleString("en-US");
    if (seconds < 6 && shown < total) requestAnimationFrame(step);
  };
  step();
}
document.addEventListener("refreshed", count);
count();
