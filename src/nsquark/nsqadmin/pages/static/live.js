// Fetches the page that is shown again every few seconds and takes its [data-live] regions over. It rests in a hidden tab
// and while the switch says so, and waits longer where an answer takes long.
import { morph } from "./morph.js";

const EVERY = Number(document.documentElement.dataset.refresh || 5) * 1000;
const button = document.querySelector(".live");
let timer = 0;
let running = false;

const paused = () => button?.getAttribute("aria-pressed") === "true";

function tell(word, stale) {
  if (!button) return;
  button.classList.toggle("stale", stale);
  button.querySelector(".word").textContent = word;
}

export async function parse(response) {
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

const regions = (root) => [...root.querySelectorAll("[data-live]")];

// The regions one by one; the whole content when there are others than before (the topic has got its first node).
function take(page, ok) {
  const old = regions(document), fresh = regions(page);
  if (old.map((each) => each.id).join() === fresh.map((each) => each.id).join()) {
    for (const region of old) morph(region, page.getElementById(region.id));
  } else if (ok) {
    morph(document.querySelector("main"), page.querySelector("main"));
  }
}

export async function refresh() {
  if (running) return;
  running = true;
  const begun = performance.now();
  try {
    const response = await fetch(location.href, { headers: { "X-Refresh": "1" }, signal: AbortSignal.timeout(20000) });
    const page = await parse(response);
    take(page, response.ok);
    tell(paused() ? "Paused" : "Live", !response.ok);
    document.dispatchEvent(new CustomEvent("refreshed"));
  } catch {
    tell("No answer", true);
  } finally {
    running = false;
    plan(Math.max(EVERY, 3 * (performance.now() - begun)));
  }
}

function plan(delay) {
  clearTimeout(timer);
  if (!document.hidden && !paused() && document.querySelector("[data-live]")) timer = setTimeout(refresh, delay);
}

button?.addEventListener("click", () => {
  const pause = !paused();
  button.setAttribute("aria-pressed", String(pause));
  tell(pause ? "Paused" : "Live", false);
  if (pause) clearTimeout(timer); else refresh();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer); else if (!paused()) refresh();
});
if (button) button.hidden = !document.querySelector("[data-live]"); // a message that is read must not run away
plan(EVERY);
