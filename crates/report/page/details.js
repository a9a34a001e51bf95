"use strict";
// Details of the selected box, and the measurements of each operation: times, errors, delegates.

class Marks {
  constructor(data, model, fn) {
    const here = (place) => place && place.model === model && place.function === fn;
    this.ops = data.models[model].functions[fn].ops;
    this.planned = data.models[model].planned;
    this.steps = data.program ? data.program.methods[fn].steps : [];
    this.time = new Map();
    this.drift = new Map();
    for (const span of data.timing ? data.timing.spans : []) {
      if (here(span.place)) this.time.set(span.place.op, (this.time.get(span.place.op) || 0) + span.own);
    }
    const drift = data.drift ? [...data.drift.values, ...data.drift.outputs] : [];
    for (const row of drift) if (here(row.place) && !this.drift.has(row.place.op)) this.drift.set(row.place.op, row);
    this.longest = [...this.time.values()].reduce((most, time) => Math.max(most, time), 1e-9);
    this.largest = this.ops.reduce((most, op) => Math.max(most, op.flops || 0), 1);
    this.dearest = this.ops.reduce((most, op) => Math.max(most, op.cost || 0), 1e-9);
  }
  // The importance of an operation, from 0 to 1, for highlighting.
  heat(index, by) {
    const op = this.ops[index];
    if (by === "time") return (this.time.get(index) || 0) / this.longest;
    if (by === "arithmetic") return Math.sqrt((op.flops || 0) / this.largest);
    if (by === "engine") return op.leaves ? 1 : 0;
    if (by === "cost") return Math.sqrt((op.cost || 0) / this.dearest);
    if (by === "drift") {
      const row = this.drift.get(index);
      if (!row || row.problem) return 0;
      return row.unlike > 0 ? 1 : row.snr === null ? 0 : Math.max(0, Math.min(1, (80 - row.snr) / 60));
    }
    return 0;
  }
  // The name and the color of an operation's device or partition.
  category(index, by) {
    const op = this.ops[index];
    if (by === "device") return op.device ? [DEVICES[op.device], `var(--device-${op.device})`] : ["not planned", "var(--panel)"];
    const step = this.steps[op.partition];
    if (!step) return null;
    return step.kind === "delegate" ? [step.label, partitionColor(op.partition)] : ["outside Core ML", "var(--outside)"];
  }
  worst(index) {
    const row = this.drift.get(index);
    if (row && row.unlike > 0) return "error";
    return (this.ops[index].marks || []).some(([severity]) => severity === "error") ? "error" : null;
  }
}

// Adjacent partitions differ in color, and none has the color of operations outside.
const partitionColor = (index) => `hsl(${150 + index * 67 % 150} 42% 38%)`;

function detailsOf(node, { model, marks, tree, reveal }) {
  const goTo = (leaf) => element("button", { class: "link mono", onclick: () => reveal(leaf) }, leaf.op ? leaf.op.name : leaf.label);
  if (!node) return [element("p", { class: "faint" }, "Click an operation to see its types, arguments, weights and line of Python. Double-click a group to open or close it. Press / to search.")];
  if (node.isGroup) {
    const leaves = leavesOf(node);
    const kinds = new Map();
    for (const leaf of leaves) kinds.set(leaf.op.type, (kinds.get(leaf.op.type) || 0) + 1);
    const time = leaves.reduce((sum, leaf) => sum + (marks.time.get(leaf.index) || 0), 0);
    const rows = [{ label: "operations", value: String(node.count) }, { label: "arithmetic", value: `about ${inCounts(leaves.reduce((sum, leaf) => sum + (leaf.op.flops || 0), 0))} FLOP` }];
    if (marks.time.size > 0) rows.push({ label: "time", value: `${inMilliseconds(time)} ms` });
    return [element("h3", {}, node.path || node.label), facts(rows), element("h3", {}, "Operations"),
      facts([...kinds].sort((x, y) => y[1] - x[1]).map(([label, value]) => ({ label, value: String(value) })))];
  }
  if (node.feature) return [element("h3", {}, `${node.role} ${node.feature.name}`), facts([{ label: "type", value: node.feature.type }])];
  const { op, index } = node;
  const rows = [{ label: "operation", value: op.type }, ...op.types.map((value) => ({ label: "result", value }))];
  if (op.module) rows.push({ label: "module", value: op.module });
  if (op.operator) rows.push({ label: "from", value: op.operator });
  if (op.source) rows.push({ label: "line", value: op.source });
  if (op.flops) rows.push({ label: "arithmetic", value: `about ${inCounts(op.flops)} FLOP` });
  if (op.bytes) rows.push({ label: "result", value: inBytes(op.bytes) });
  if (marks.time.has(index)) rows.push({ label: "time", value: `${inMilliseconds(marks.time.get(index))} ms` });
  const drift = marks.drift.get(index);
  if (drift) rows.push({ label: "drift", value: drift.problem || inDecibels(drift) });
  if (marks.steps[op.partition]) rows.push({ label: "partition", value: stepName(marks.steps, op.partition) });
  if (op.device) rows.push({ label: model.planned ? "Core ML's plan" : `forecast for ${model.forecast}`, value: op.leaves || `runs on the ${DEVICES[op.device]}` });
  if (op.cost) rows.push({ label: "share of cost", value: `${(op.cost * 100).toPrecision(3)} % by Core ML's estimate` });
  const parts = [element("h3", { class: "mono" }, op.name), facts(rows)];
  if (op.code) parts.push(element("pre", { class: "mono", style: "white-space: pre-wrap" }, op.code));
  for (const [severity, text] of op.marks || []) parts.push(element("div", { class: `finding ${severity}` }, element("p", {}, element("strong", {}, severity), " ", coded(text))));
  if (op.arguments.length > 0) parts.push(element("h3", {}, "Arguments"), facts(op.arguments.map(([label, value]) => ({ label, value }))));
  for (const weight of (op.weights || []).map((at) => model.weights[at])) {
    parts.push(element("h3", {}, `Weight ${weight.name}`), facts([{ label: "type", value: weight.type }, { label: "form", value: weight.form }, { label: "bytes", value: inBytes(weight.bytes) }]));
    if (weight.histogram) parts.push(histogramOf(weight.histogram, weight.name));
  }
  const takes = op.from.filter((from) => from >= 0).map((from) => tree.leaves[from]);
  const gives = tree.leaves.filter((leaf) => leaf.op.from.includes(index));
  const list = (title, leaves) => leaves.length === 0 ? [] : [element("h3", {}, title), element("ul", {}, ...leaves.slice(0, 20).map((leaf) => element("li", {}, goTo(leaf))))];
  return [...parts, ...list("Inputs", takes), ...list("Used by", gives)];
}
