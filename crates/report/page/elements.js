"use strict";
// Helpers for elements, numbers and plots. Names come from untrusted files, so they are always set as text,
// never as markup.

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

// A message in which text between backquotes is shown as code. A message with an odd number of backquotes is
// shown unchanged.
function coded(text) {
  const parts = String(text).split("`");
  if (parts.length === 1 || parts.length % 2 === 0) return text;
  return element("span", {}, ...parts.map((part, index) => index % 2 === 1 ? element("code", {}, part) : part));
}

function svg(tag, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(properties || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function scaled(number, units, step = 1000) {
  let unit = 0;
  while (number >= step && unit + 1 < units.length) { number /= step; unit += 1; }
  const digits = unit === 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return number.toFixed(digits) + units[unit];
}
const inBytes = (number) => scaled(number, [" B", " KB", " MB", " GB", " TB"]);
const inCounts = (number) => scaled(number, ["", " k", " M", " G", " T"]);
const inMilliseconds = (number) => number >= 100 ? number.toFixed(0) : number >= 1 ? number.toFixed(2) : number.toFixed(3);
const inDecibels = (row) => row.problem ? "–" : row.unlike > 0 ? "not finite" : row.snr === null ? "exact" : `${row.snr.toFixed(1)} dB`;

const DEVICES = { cpu: "CPU", gpu: "GPU", "neural-engine": "Neural Engine", other: "another device" };
const stepName = (steps, index, none) => index === null ? none : `${index + 1}: ${steps[index].kind === "delegate" ? steps[index].label : "kernels"}`;

// Shortens a name in the middle, because names differ at the beginning or at the end.
function shortened(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (length - 1 - head))}`;
}

function facts(rows) {
  return element("dl", { class: "facts" }, ...rows.flatMap((row) =>
    [element("dt", {}, row.label), element("dd", {}, coded(row.value))]));
}

const cell = (content) => typeof content === "string" ? coded(content) : content;

// A table with sortable columns. It shows the first rows, and further rows on request.
function sortable({ columns, rows, caption, first = 200, order }) {
  let shown = first;
  let sorted = order === undefined ? null : { column: order, down: true };
  const body = element("tbody");
  const more = element("button", { onclick: () => { shown += 1000; fill(); } });
  const heads = columns.map((column, index) => {
    const turn = () => {
      sorted = { column: index, down: sorted && sorted.column === index ? !sorted.down : !!column.number };
      fill();
    };
    return element("th", { scope: "col", class: column.number ? "number" : "" },
      element("button", { onclick: turn }, column.title));
  });
  let wanted = rows;
  function fill() {
    let list = wanted;
    if (sorted) {
      const key = columns[sorted.column].key;
      list = [...wanted].sort((x, y) => {
        const [a, b] = [key(x), key(y)];
        const less = typeof a === "number" ? a - b : String(a).localeCompare(String(b));
        return sorted.down ? -less : less;
      });
    }
    heads.forEach((head, index) => head.setAttribute("aria-sort",
      sorted && sorted.column === index ? (sorted.down ? "descending" : "ascending") : "none"));
    body.replaceChildren(...list.slice(0, shown).map((row) => element("tr", { class: row.kind || "" },
      ...columns.map((column) => element("td", { class: column.number ? "number" : column.whole ? "whole" : "" }, cell(column.show(row)))))));
    more.textContent = `Show more (${shown} of ${list.length})`;
    more.hidden = list.length <= shown;
  }
  fill();
  const table = element("table", {}, element("caption", { class: "hidden-text" }, caption),
    element("thead", {}, element("tr", {}, ...heads)), body);
  const made = element("div", {}, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table), more);
  made.filter = (keep) => { wanted = rows.filter(keep); fill(); };
  return made;
}

function histogramOf(data, label) {
  const finite = data.sampled - data.non_finite;
  if (finite === 0 || data.min === data.max) {
    // All elements are equal, so the histogram would have no width.
    const kind = data.non_finite > 0 ? "finite element" : "element";
    const value = Number(data.min.toPrecision(4));
    const all = finite === 0 ? `none of the ${inCounts(data.sampled)} elements is finite`
      : finite === 1 ? `the only ${kind} is ${value}` : `all ${inCounts(finite)} ${kind}s are ${value}`;
    const rest = finite > 0 && data.non_finite > 0 ? `; ${inCounts(data.non_finite)} not finite` : "";
    return element("p", { class: "faint" }, `No histogram: ${all}${rest}.`);
  }
  const [width, height] = [300, 80];
  const most = Math.max(...data.counts, 1);
  const column = width / data.counts.length;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height + 16}`, role: "img", width, "aria-label": `Histogram of ${label} from ${data.min} to ${data.max}` });
  data.counts.forEach((count, index) => {
    // Heights are logarithmic, so that rare values remain visible.
    const high = count === 0 ? 0 : Math.max(1, Math.log1p(count) / Math.log1p(most) * height);
    drawn.append(svg("rect", { class: "column", x: index * column, y: height - high, width: Math.max(column - 1, 1), height: high }));
  });
  const end = svg("text", { x: width, y: height + 13, "text-anchor": "end" }, data.max.toPrecision(4));
  drawn.append(svg("text", { x: 0, y: height + 13 }, data.min.toPrecision(4)), end);
  const note = `mean ${data.mean.toPrecision(3)}, deviation ${data.deviation.toPrecision(3)}, ${(data.zeros * 100).toFixed(1)} % zeros` +
    (data.non_finite > 0 ? `, ${data.non_finite} not finite` : "") + `; ${inCounts(data.sampled)} elements, logarithmic`;
  return element("figure", { style: "margin: .3rem 0" }, drawn, element("figcaption", { class: "faint" }, note));
}

// A line plot of values along the network. `show` is called with the index at the clicked position.
function plot(values, { label, unit, show, bad }) {
  const [width, height, left] = [960, 160, 52];
  const finite = values.filter((value) => value !== null && Number.isFinite(value));
  const [low, high] = [finite.reduce((least, value) => Math.min(least, value), 0), finite.reduce((most, value) => Math.max(most, value), 1)];
  const x = (index) => left + (values.length === 1 ? 0.5 : index / (values.length - 1)) * (width - left - 8);
  const y = (value) => 8 + (1 - (value - low) / (high - low)) * (height - 16);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const value of [low, (low + high) / 2, high]) {
    drawn.append(svg("line", { class: "axis", x1: left, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, unit(value)));
  }
  const points = values.map((value, index) => value === null || !Number.isFinite(value) ? null : `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
  drawn.append(svg("polyline", { class: "line", points: points.filter((point) => point !== null).join(" ") }));
  values.forEach((value, index) => {
    if (bad && bad(index)) drawn.append(svg("rect", { class: "bad", x: x(index) - 2, y: 8, width: 4, height: height - 16 }));
  });
  if (show) {
    drawn.style.cursor = "pointer";
    drawn.addEventListener("click", (event) => {
      const box = drawn.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width * width - left) / (width - left - 8);
      show(Math.max(0, Math.min(values.length - 1, Math.round(at * (values.length - 1)))));
    });
  }
  return drawn;
}
