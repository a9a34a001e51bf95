"use strict";
// The sections of the page, except the graph.

function section(id, title) {
  const made = element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title));
  document.querySelector("main").append(made);
  document.getElementById("nav").append(element("a", { href: `#${id}` }, title));
  return made;
}

// The module and the line of Python from which an operation comes.
function whereOf(data, { model, function: fn, op }) {
  const { module, source, code } = data.models[model].functions[fn].ops[op];
  const parts = [];
  if (module) parts.push("module ", element("code", {}, module));
  if (source) parts.push(parts.length > 0 ? ", " : "", element("code", {}, source));
  if (code) parts.push(": ", element("code", {}, code.trim()));
  return parts.length > 0 ? element("p", { class: "where" }, ...parts) : null;
}

function showFindings(data, goTo) {
  const parts = data.findings.map((finding) => {
    const go = finding.place ? element("button", { onclick: () => goTo(finding.place) }, "Show in the graph") : null;
    return element("div", { class: `finding ${finding.severity}` },
      element("p", {}, element("strong", {}, finding.severity), " ", coded(finding.title), " ", go),
      finding.detail ? element("p", { class: "detail" }, coded(finding.detail)) : null,
      finding.place ? whereOf(data, finding.place) : null);
  });
  const most = 8;
  const box = document.getElementById("findings");
  box.append(...parts.slice(0, most));
  if (parts.length > most) box.append(element("details", {}, element("summary", {}, `${parts.length - most} more`), ...parts.slice(most)));
  document.getElementById("nav").append(element("a", { href: "#findings" }, "Findings"));
}

function showSummary(data) {
  const box = document.getElementById("summary");
  if (data.facts.length === 0 && data.models.length === 0) { box.remove(); return; }
  document.getElementById("nav").append(element("a", { href: "#summary" }, "Summary"));
  // With a single model, its facts follow the page's facts in the same columns.
  const single = data.models.length === 1;
  const first = single ? [...data.facts, ...data.models[0].facts] : data.facts;
  if (first.length > 0) box.append(facts(first));
  for (const model of data.models) {
    if (!single) box.append(element("h3", {}, model.name), facts(model.facts));
    for (const fn of model.functions) {
      const rows = [["input", fn.inputs], ["state", fn.states], ["output", fn.outputs]].flatMap(([label, features]) =>
        features.map((feature) => ({ label: `${label} ${feature.name}`, value: feature.type })));
      const title = model.functions.length > 1 ? `Function ${fn.name}` : "Interface";
      box.append(element("h3", {}, title), facts(rows));
    }
  }
}

function showProgram(data, goTo) {
  if (!data.program) return;
  const box = section("program", "Partitions");
  const m = data.models.findIndex((model) => model.functions.length === data.program.methods.length && model.functions.every((fn, f) => fn.name === data.program.methods[f].name));
  data.program.methods.forEach((method, f) => {
    const model = data.models[m];
    const { ops } = model.functions[f];
    const marks = new Marks(data, m, f);
    const crossing = (index, side) => method.crossings.reduce((sum, value) => sum + (value[side] === index ? value.bytes : 0), 0);
    const rows = method.steps.map((step, index) => ({ step, index, first: -1, count: 0, flops: 0, time: 0, weights: new Set(), taken: crossing(index, "to"), given: crossing(index, "from") }));
    ops.forEach((op, index) => {
      const row = rows[op.partition];
      if (row.first < 0) row.first = index;
      row.count += 1;
      row.flops += op.flops || 0;
      row.time += marks.time.get(index) || 0;
      for (const weight of op.weights || []) row.weights.add(weight);
    });
    const weightsOf = (row) => [...row.weights].reduce((sum, at) => sum + model.weights[at].bytes, 0);
    const columns = [
      { title: "#", number: true, key: (row) => row.index, show: (row) => String(row.index + 1) },
      { title: "partition", key: (row) => row.step.label, show: (row) => {
        const name = element("button", { class: "link", onclick: () => goTo({ model: m, function: f, op: row.first }) }, shortened(row.step.label, 60));
        const color = row.step.kind === "delegate" ? partitionColor(row.index) : "var(--outside)";
        return element("span", {}, element("i", { class: "swatch", style: `background: ${color}` }), row.first < 0 ? row.step.label : name);
      } },
      { title: "runs on", whole: true, key: (row) => row.step.kind, show: (row) => row.step.kind === "delegate" ? (row.step.model === null ? "another backend" : "Core ML") : "kernels, outside" },
      { title: "operations", number: true, key: (row) => row.count, show: (row) => String(row.count) },
      { title: "FLOP", number: true, key: (row) => row.flops, show: (row) => inCounts(row.flops) },
      { title: "weights", number: true, key: weightsOf, show: (row) => inBytes(weightsOf(row)) },
      { title: "stored", number: true, key: (row) => row.step.stored, show: (row) => inBytes(row.step.stored) },
      { title: "enters", number: true, key: (row) => row.taken, show: (row) => inBytes(row.taken) },
      { title: "leaves", number: true, key: (row) => row.given, show: (row) => inBytes(row.given) },
    ];
    if (marks.time.size > 0) columns.push({ title: "ms", number: true, key: (row) => row.time, show: (row) => inMilliseconds(row.time) });
    box.append(element("h3", {}, `Method ${method.name}`), sortable({ columns, rows, caption: `Partitions of ${method.name}`, first: 50 }));
    const name = (index, none) => stepName(method.steps, index, none);
    box.append(element("details", {}, element("summary", {}, `${method.crossings.length} values cross, ${inBytes(method.crossings.reduce((sum, value) => sum + value.bytes, 0))} per run`),
      sortable({ caption: `Values that cross partitions in ${method.name}`, rows: method.crossings, first: 100, columns: [
        { title: "value", whole: true, key: (row) => row.value, show: (row) => element("span", { class: "mono" }, row.value) },
        { title: "type", key: (row) => row.type, show: (row) => row.type },
        { title: "bytes", number: true, key: (row) => row.bytes, show: (row) => inBytes(row.bytes) },
        { title: "from", key: (row) => row.from === null ? -1 : row.from, show: (row) => name(row.from, "the caller") },
        { title: "to", key: (row) => row.to === null ? 1e9 : row.to, show: (row) => name(row.to, "the caller") },
      ] })));
  });
}

function showOperations(data, goTo) {
  const rows = data.models.flatMap((model, m) => model.functions.flatMap((fn, f) => {
    const marks = new Marks(data, m, f);
    return fn.ops.map((op, index) => ({ op, index, place: { model: m, function: f, op: index }, time: marks.time.get(index), drift: marks.drift.get(index) }));
  }));
  if (rows.length === 0) return;
  const box = section("operations", "Operations");
  const columns = [
    { title: "operation", whole: true, key: (row) => row.op.type, show: (row) => row.op.type },
    { title: "name", key: (row) => row.op.name, show: (row) => element("button", { class: "link mono", onclick: () => goTo(row.place) }, shortened(row.op.name, 60)) },
    { title: "module", key: (row) => row.op.module, show: (row) => row.op.module },
    { title: "type", key: (row) => row.op.types[0] || "", show: (row) => row.op.types[0] || "" },
    { title: "FLOP", number: true, key: (row) => row.op.flops || 0, show: (row) => inCounts(row.op.flops || 0) },
  ];
  if (data.timing) columns.push({ title: "ms", number: true, key: (row) => row.time || 0, show: (row) => row.time === undefined ? "" : inMilliseconds(row.time) });
  if (data.drift) columns.push({ title: "drift", number: true, key: (row) => !row.drift ? -1e9 : row.drift.unlike > 0 ? 1e9 : row.drift.snr === null ? -1e8 : -row.drift.snr, show: (row) => row.drift ? inDecibels(row.drift) : "" });
  if (data.models.some((model) => model.planned)) columns.push({ title: "% of cost", number: true, key: (row) => row.op.cost || 0, show: (row) => row.op.cost ? (row.op.cost * 100).toFixed(2) : "" });
  columns.push({ title: data.models.every((model) => model.planned) ? "off the Neural Engine (Core ML's plan)" : "off the Neural Engine (forecast)", key: (row) => row.op.leaves || "", show: (row) => row.op.leaves || "" });
  const table = sortable({ columns, rows, caption: "Operations" });
  const filter = element("input", { type: "search", "aria-label": "Filter operations", placeholder: "filter", oninput: () => {
    const text = filter.value.toLowerCase();
    table.filter((row) => `${row.op.type} ${row.op.name} ${row.op.module} ${row.op.source || ""}`.toLowerCase().includes(text));
  } });
  box.append(element("div", { class: "tools" }, filter), table);
}

function showWeights(data) {
  const rows = data.models.flatMap((model) => model.weights.map((weight) => ({ weight, model })));
  if (rows.length === 0) return;
  const box = section("weights", "Weights");
  const most = rows.reduce((most, row) => Math.max(most, row.weight.bytes), 1);
  const forms = new Map();
  for (const { weight } of rows) {
    const sum = forms.get(weight.form) || { bytes: 0, elements: 0, count: 0 };
    forms.set(weight.form, { bytes: sum.bytes + weight.bytes, elements: sum.elements + weight.elements, count: sum.count + 1 });
  }
  box.append(facts([...forms].map(([label, sum]) => ({ label, value: `${sum.count} weights, ${inBytes(sum.bytes)}, ${inCounts(sum.elements)} elements, ${(sum.bytes * 8 / sum.elements).toFixed(2)} bits each` }))));
  box.append(sortable({ caption: "Weights", rows, first: 50, order: 3, columns: [
    { title: "weight", key: (row) => row.weight.name, show: (row) => element("span", { class: "mono" }, shortened(row.weight.name, 70)) },
    { title: "type", key: (row) => row.weight.type, show: (row) => row.weight.type },
    { title: "form", key: (row) => row.weight.form, show: (row) => row.weight.form },
    { title: "bytes", number: true, key: (row) => row.weight.bytes, show: (row) => inBytes(row.weight.bytes) },
    { title: "share", key: (row) => -row.weight.bytes, show: (row) => element("span", { class: "bar", style: `width: ${(row.weight.bytes / most * 8).toFixed(2)}rem` }) },
    { title: "range", number: true, key: (row) => row.weight.histogram ? row.weight.histogram.max - row.weight.histogram.min : 0, show: (row) => row.weight.histogram ? `${row.weight.histogram.min.toPrecision(3)} … ${row.weight.histogram.max.toPrecision(3)}` : "" },
  ] }));
}

function showTime(data, goTo) {
  if (!data.timing || data.timing.spans.length === 0) return;
  const box = section("time", "Time");
  const { spans, total } = data.timing;
  box.append(element("p", { class: "faint" }, coded(`${data.timing.where_}: ${inMilliseconds(total)} ms in ${spans.length} steps`)));
  const [width, row] = [960, 18];
  const end = spans.reduce((most, span) => Math.max(most, span.start + span.elapsed), 1e-9);
  const depths = depthsOf(spans);
  const deepest = depths.reduce((most, depth) => Math.max(most, depth), 0);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${(deepest + 1) * row + 16}`, role: "img", "aria-label": "Steps over time" });
  spans.forEach((span, index) => {
    const wide = span.elapsed / end * width;
    const family = familyOf(span.label);
    const rect = svg("rect", { x: span.start / end * width, y: depths[index] * row, width: Math.max(wide - 0.5, 0.5), height: row - 2, fill: `var(--${family})` });
    rect.append(svg("title", {}, `${span.label} ${span.value}: ${inMilliseconds(span.elapsed)} ms`));
    if (span.place) rect.addEventListener("click", () => goTo(span.place));
    chart.append(rect);
  });
  chart.append(svg("text", { x: 0, y: (deepest + 1) * row + 12 }, "0 ms"), svg("text", { x: width, y: (deepest + 1) * row + 12, "text-anchor": "end" }, `${inMilliseconds(end)} ms`));
  box.append(chart);
  const most = spans.reduce((most, span) => Math.max(most, span.own), 1e-9);
  box.append(sortable({ caption: "Steps by time", rows: spans, first: 30, order: 2, columns: [
    { title: "step", key: (span) => span.label, show: (span) => span.label },
    { title: "value", key: (span) => span.value, show: (span) => span.place ? element("button", { class: "link mono", onclick: () => goTo(span.place) }, shortened(span.value, 60)) : span.value },
    { title: "ms", number: true, key: (span) => span.own, show: (span) => inMilliseconds(span.own) },
    { title: "share", number: true, key: (span) => span.own, show: (span) => `${(span.own / total * 100).toFixed(1)} %` },
    { title: "of the longest", key: (span) => -span.own, show: (span) => element("span", { class: "bar", style: `width: ${(span.own / most * 10).toFixed(2)}rem` }) },
  ] }));
}

// The number of steps that contain each step.
function depthsOf(spans) {
  const depths = new Array(spans.length).fill(0);
  const order = spans.map((span, index) => index).sort((x, y) => spans[x].start - spans[y].start || spans[y].elapsed - spans[x].elapsed);
  const around = [];
  for (const index of order) {
    const span = spans[index];
    while (around.length > 0 && around[around.length - 1] < span.start + span.elapsed) around.pop();
    depths[index] = around.length;
    around.push(span.start + span.elapsed);
  }
  return depths;
}

function showPictures(data) {
  if (data.pictures.length === 0) return;
  section("pictures", "Pictures").append(element("div", { class: "pictures" }, ...data.pictures.map(pictureOf)));
}

function showDrift(data, goTo) {
  const { drift } = data;
  if (!drift) return;
  const box = section("drift", "Drift");
  box.append(element("p", { class: "faint" }, `${drift.other} compared with ${drift.reference}`));
  const columns = [
    { title: "value", key: (row) => row.name, show: (row) => row.place ? element("button", { class: "link mono", onclick: () => goTo(row.place) }, shortened(row.name, 60)) : row.name },
    { title: "operation", key: (row) => row.op, show: (row) => row.op },
    { title: "signal to noise", number: true, key: (row) => row.unlike > 0 ? 1e9 : row.snr === null ? -1e9 : -row.snr, show: (row) => row.problem || inDecibels(row) },
    { title: "max error", number: true, key: (row) => row.max_absolute, show: (row) => row.unlike > 0 ? "not finite" : row.max_absolute.toExponential(2) },
    { title: "relative", number: true, key: (row) => row.max_relative === null ? 1e300 : row.max_relative, show: (row) => row.max_relative === null ? "∞" : row.max_relative.toExponential(2) },
    { title: "not finite", number: true, key: (row) => row.unlike, show: (row) => `${row.unlike} of ${row.elements}` },
  ];
  box.append(element("h3", {}, "Outputs"), sortable({ columns, rows: drift.outputs, caption: "Outputs" }));
  for (const row of drift.outputs) {
    if (row.errors) box.append(element("h3", {}, `Errors of ${row.name}`), histogramOf(row.errors, `errors of ${row.name}`));
    if (row.pictures.length > 0) box.append(element("div", { class: "pictures" }, ...row.pictures.map(pictureOf)));
  }
  if (drift.values.length > 0) {
    box.append(element("h3", {}, "Along the network"),
      plot(drift.values.map((row) => row.problem || row.unlike > 0 ? null : row.snr === null ? 150 : Math.min(row.snr, 150)),
        { label: "Signal to noise along the network", unit: (value) => `${value.toFixed(0)} dB`, bad: (index) => drift.values[index].unlike > 0,
          show: (index) => { if (drift.values[index].place) goTo(drift.values[index].place); } }),
      element("p", { class: "faint" }, `${drift.values.length} values in both; the reference computes ${drift.computed[0]}, the other ${drift.computed[1]}. Red: NaN or infinite on only one side.`),
      element("h3", {}, "Worst first"), sortable({ columns, rows: drift.values, caption: "Values, worst first", first: 30, order: 2 }));
  }
}

function pictureOf(picture) {
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": picture.label });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(picture.width, picture.height);
  const bytes = atob(picture.rgb);
  for (let at = 0; at < picture.width * picture.height; at += 1) {
    for (let channel = 0; channel < 3; channel += 1) pixels.data[4 * at + channel] = bytes.charCodeAt(3 * at + channel);
    pixels.data[4 * at + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return element("figure", {}, canvas, element("figcaption", { class: "faint" }, picture.label));
}

function showMemory(data, goTo) {
  const functions = data.models.flatMap((model, m) => model.functions.map((fn, f) => ({ model, fn, m, f })));
  const shown = functions.filter(({ fn }) => fn.live_bytes.some((bytes) => bytes > 0));
  if (shown.length === 0) return;
  const box = section("memory", "Memory");
  box.append(element("p", { class: "faint" }, "Bytes of activations that are needed after each operation, in program order."));
  for (const { model, fn, m, f } of shown.slice(0, 8)) {
    box.append(element("h3", {}, `${model.name} ${fn.name}: at most ${inBytes(fn.live_bytes.reduce((most, bytes) => Math.max(most, bytes), 0))}`),
      plot(fn.live_bytes, { label: `Memory of ${fn.name}`, unit: inBytes, show: (op) => goTo({ model: m, function: f, op }) }));
  }
}

function showChanges(data) {
  if (!data.changes) return;
  const box = section("changes", "Changes");
  const { facts: changed, functions } = data.changes;
  if (changed.length > 0) box.append(facts(changed.map(([label, before, after]) => ({ label, value: `${before || "–"} → ${after || "–"}` }))));
  for (const fn of functions) {
    const [before, after] = fn.operations.map((count) => count === null ? "absent" : `${count} operations`);
    box.append(element("h3", {}, `Function ${fn.name}: ${before} → ${after}, ${fn.same} unchanged`));
    if (fn.changes.length === 0) continue;
    box.append(sortable({ caption: `Changes of ${fn.name}`, rows: fn.changes, columns: [
      { title: "change", key: (row) => row.kind, show: (row) => row.kind },
      { title: "what", key: (row) => row.what, show: (row) => row.what },
      { title: "name", key: (row) => row.name, show: (row) => element("span", { class: "mono" }, shortened(row.name, 60)) },
      { title: "module", key: (row) => row.module, show: (row) => row.module },
      { title: "differences", key: (row) => row.differences.length, show: (row) => row.differences.map(([label, x, y]) => `${label}: ${x} → ${y}`).join("; ") },
    ] }));
  }
}
