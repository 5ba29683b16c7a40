// Draws nsqadmin's history with uPlot: every .plot says which series (data-history) and which column (data-column).
/* global uPlot */

const plots = new Map(); // element → {plot, column}
const FORMATS = {
  rate: (v) => v === 0 ? "0" : `${short(v)}/s`,
  depth: short,
  in_flight: short,
  latency: (v) => v === 0 ? "0" : v >= 120 ? `${trim(v / 60)}m` : v >= 1 ? `${trim(v)} s` : v >= 1e-3 ? `${trim(v * 1e3)} ms` : `${trim(v * 1e6)} µs`,
};

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) return trim(value / size) + unit;
  }
  return trim(value);
}

const STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400]; // seconds between times

const WHOLE = Array.from({ length: 39 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // for what is counted

function clock(seconds, digits) {
  return new Date(seconds * 1000).toTimeString().slice(0, digits);
}

function ink(name) {
  const probe = document.createElement("span");
  probe.className = `ink-${name}`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function faint(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g);
  return `rgba(${r}, ${g}, ${b}, 0.12)`;
}

function make(element, column, data) {
  const colour = ink(column);
  const format = FORMATS[column];
  const axis = { stroke: ink("muted"), font: "11px system-ui", grid: { stroke: ink("line"), width: 1 }, ticks: { show: false } };
  return new uPlot({
    width: element.clientWidth,
    height: element.clientHeight,
    padding: [6, 20, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "nsqadmin" }, points: { size: 6 } },
    legend: { show: false },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 62, incrs: STEPS, values: (_, ticks) => ticks.map((t) => clock(t, ticks[1] - ticks[0] < 60 ? 8 : 5)) },
      { ...axis, size: 52, space: 32, ...(column === "depth" || column === "in_flight" ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(format) },
    ],
    series: [{}, { stroke: colour, fill: faint(colour), width: 1.75, points: { show: false }, spanGaps: false }],
    hooks: { setCursor: [(u) => tell(element, column, u)] },
  }, data, element);
}

function tell(element, column, u) {
  const output = element.closest("figure").querySelector("output");
  const at = u.cursor.idx;
  const values = u.data[1];
  if (at !== null && at !== undefined && values[at] !== null && values[at] !== undefined) {
    output.textContent = `${clock(u.data[0][at], 8)}  ${FORMATS[column](values[at])}`;
  } else {
    const last = values.findLast((value) => value !== null);
    output.textContent = last === undefined ? "" : FORMATS[column](last);
  }
}

function draw(element, column, history) {
  const values = history[column] ?? [];
  const known = values.filter((value) => value !== null).length;
  const wait = element.querySelector(".wait");
  if (known < 2) return;
  if (wait) wait.remove();
  const data = [history.times, values];
  const entry = plots.get(element);
  if (entry) entry.plot.setData(data);
  else plots.set(element, { plot: make(element, column, data), column });
  tell(element, column, plots.get(element).plot);
}

async function update() {
  const wanted = new Map();
  for (const element of document.querySelectorAll(".plot[data-history]")) {
    const url = element.dataset.history;
    wanted.set(url, [...(wanted.get(url) ?? []), element]);
  }
  for (const [url, elements] of wanted) {
    try {
      const response = await fetch(url);
      if (!response.ok) {
        for (const wait of elements.map((each) => each.querySelector(".wait"))) {
          if (wait) wait.textContent = "No history: it is new, or too much is charted already";
        }
        continue;
      }
      const history = await response.json();
      for (const element of elements) draw(element, element.dataset.column, history);
    } catch { /* the page tells that nsqadmin does not answer */ }
  }
}

function redraw() {
  for (const { plot } of plots.values()) plot.destroy();
  plots.clear();
  update();
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const [element, { plot }] of plots) plot.setSize({ width: element.clientWidth, height: element.clientHeight });
  }, 100);
});
document.addEventListener("refreshed", update);
document.addEventListener("themed", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
update();
