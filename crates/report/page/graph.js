"use strict";
// The graph on a canvas: drawing, moving, selecting.

const FAMILIES = [
  ["linear", /^(linear|matmul|einsum|scaled_dot_product_attention)/, "products"],
  ["conv", /^(conv|max_pool|avg_pool|l2_pool|resize|upsample|crop)/, "convolutions, pooling"],
  ["norm", /norm|^softmax/, "normalization"],
  ["activation", /^(relu|gelu|silu|sigmoid|tanh|leaky|elu|prelu|relu6|soft|hard|clamped|thresholded|scaled_tanh|erf)/, "activations"],
  ["movement", /^(reshape|transpose|concat|split|slice|expand|squeeze|stack|tile|pad|gather|scatter|reverse|flatten|cast|identity|band_part|sliding|space|depth|pixel|batch_to|shape|quantize|dequantize)/, "movement, casts"],
  ["reduce", /^(reduce|cumsum|topk|argsort|sort|non_max)/, "reductions, order"],
  ["state", /^(read_state|write_state|coreml_update|make_state|list_|make_list|while|cond|lstm|gru|rnn)/, "states, loops, recurrence"],
  ["elementwise", /^(add|sub|mul|real_div|div|pow|maximum|minimum|exp|log|sqrt|rsqrt|abs|sign|sin|cos|square|inverse|neg|floor|ceil|round|clip|select|equal|less|greater|not|logical|mod)/, "elementwise"],
];
const familyOf = (type) => (FAMILIES.find(([, pattern]) => pattern.test(type)) || ["other"])[0];

class GraphView {
  constructor(stage, { marks, select }) {
    this.canvas = element("canvas", { tabindex: "0", role: "application",
      "aria-label": "Graph of operations. Arrow keys move along connections, Enter opens a group, plus and minus zoom, 0 shows everything." });
    this.map = element("canvas", { class: "map", "aria-hidden": "true" });
    this.stage = stage;
    stage.append(this.canvas, this.map);
    Object.assign(this, { marks, onselect: select, scale: 1, x: 0, y: 0, selected: null, colors: "kind", matches: new Set() });
    this.listen();
    new ResizeObserver(() => this.draw()).observe(stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.theme = null; this.draw(); });
  }

  show(fn, tree) {
    Object.assign(this, { fn, tree, selected: null, matches: new Set() });
    this.start();
  }

  // Shows the whole graph if it is readable, otherwise its beginning.
  start() {
    this.fit();
    if (this.scale >= 0.55) return;
    const [{ width }, box] = [layOut(this.tree.root), this.stage.getBoundingClientRect()];
    this.scale = Math.max(this.scale, Math.min(0.9, Math.max(0.55, box.width / width)));
    this.x = (box.width - width * this.scale) / 2;
    this.y = 8;
    this.draw();
  }

  color(name) {
    if (!this.theme) {
      const style = getComputedStyle(document.documentElement);
      this.theme = new Proxy({}, { get: (cache, key) => cache[key] || (cache[key] = style.getPropertyValue(`--${key}`).trim()) });
    }
    return this.theme[name];
  }

  fit() {
    const { width, height } = layOut(this.tree.root);
    const box = this.stage.getBoundingClientRect();
    this.scale = Math.min(1.2, box.width / width, box.height / height) || 1;
    this.scale = Math.max(this.scale, 0.02);
    this.x = (box.width - width * this.scale) / 2;
    this.y = Math.max(0, (box.height - height * this.scale) / 2);
    this.draw();
  }

  draw() {
    if (this.pending || !this.tree) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.paint(); });
  }

  paint() {
    const [box, ratio] = [this.stage.getBoundingClientRect(), devicePixelRatio || 1];
    const size = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (this.canvas.width !== size[0] || this.canvas.height !== size[1]) [this.canvas.width, this.canvas.height] = size;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, box.width, box.height);
    context.translate(this.x, this.y);
    context.scale(this.scale, this.scale);
    const view = { left: -this.x / this.scale, top: -this.y / this.scale };
    view.right = view.left + box.width / this.scale;
    view.bottom = view.top + box.height / this.scale;
    this.paintGroup(context, this.tree.root, 0, 0, view);
    this.paintMap(view);
  }

  paintGroup(context, group, dx, dy, view) {
    const { nodes, edges } = layOut(group);
    context.strokeStyle = this.color("faint");
    context.lineWidth = Math.max(1, 0.7 / this.scale);
    context.beginPath();
    for (const points of edges) {
      const ends = [points[0], points[points.length - 1]];
      if (Math.max(ends[0].y, ends[1].y) + dy < view.top || Math.min(ends[0].y, ends[1].y) + dy > view.bottom) continue;
      context.moveTo(points[0].x + dx, points[0].y + dy);
      for (const point of points.slice(1)) context.lineTo(point.x + dx, point.y + dy);
    }
    context.stroke();
    for (const { node, x, y, width, height } of nodes) {
      const [left, top] = [x + dx, y + dy];
      if (left > view.right || top > view.bottom || left + width < view.left || top + height < view.top) continue;
      this.paintBox(context, node, left, top, width, height);
      if (node.isGroup && node.open) this.paintGroup(context, node, left, top, view);
    }
  }

  paintBox(context, node, left, top, width, height) {
    const open = node.isGroup && node.open;
    context.fillStyle = open ? this.color("group") : this.fill(node);
    // At a small scale, a box is a plain rectangle.
    if (height * this.scale < 5 && node !== this.selected && !this.matches.has(node)) { context.fillRect(left, top, width, height); return; }
    context.strokeStyle = this.color("line");
    context.lineWidth = 1;
    if (node === this.selected) { context.strokeStyle = this.color("accent"); context.lineWidth = 3 / Math.min(this.scale, 1); }
    else if (this.worst(node) === "error") { context.strokeStyle = this.color("error"); context.lineWidth = 3; }
    else if (this.matches.has(node)) { context.strokeStyle = this.color("warning"); context.lineWidth = 3; }
    context.beginPath();
    context.roundRect(left, top, width, height, node.isGroup ? 6 : 4);
    context.fill();
    context.stroke();
    if (this.scale < 0.22 && !open) return;
    if (open && this.scale * 12 < 4) return;
    const colored = this.isCategory() ? this.categoryOf(node) !== null : !node.isGroup && node.op && this.colors === "kind";
    context.fillStyle = colored ? "#ffffff" : this.color("text");
    context.font = `${node.isGroup ? 600 : 500} 13px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const fitting = (text, line) => this.fitting(context, node, text, `${line} ${Math.round(width)}`, width - 18);
    if (open) { context.fillText(fitting(node.label, "open"), left + 10, top + 14); return; }
    const [first, second] = this.texts(node);
    context.fillText(fitting(first, "first"), left + 10, top + (second ? 14 : height / 2));
    if (second) {
      context.font = "11px system-ui, sans-serif";
      if (!colored) context.fillStyle = this.color("faint");
      context.fillText(fitting(second, "second"), left + 10, top + 29);
    }
  }

  // Cuts a text to the width of a box. The result is kept: measuring is slow, and boxes are painted in every
  // frame.
  fitting(context, node, text, key, room) {
    const known = node.texts ||= {};
    if (!(key in known)) {
      let length = text.length;
      while (length > 4 && context.measureText(shortened(text, length)).width > room) length -= Math.max(1, Math.round(length / 20));
      known[key] = shortened(text, length);
    }
    return known[key];
  }

  texts(node) {
    if (node.isGroup) return [`${node.label} ▸`, `${node.count} operations`];
    if (node.feature) return [`${node.role} ${node.feature.name}`, node.feature.type];
    return [node.op.type, node.op.name];
  }

  isCategory() { return this.colors === "partition" || this.colors === "device"; }

  // The category of all operations in a box; none if they differ.
  categoryOf(node) {
    if (node.feature) return null;
    const key = `${this.colors} of all`;
    if (!(key in (node.known ||= {}))) {
      const found = node.isGroup ? leavesOf(node).map((leaf) => this.marks.category(leaf.index, this.colors)) : [this.marks.category(node.index, this.colors)];
      node.known[key] = found.every((one) => one && one[0] === found[0][0]) ? found[0] : null;
    }
    return node.known[key];
  }

  // The largest importance of an operation in a box. It is kept for groups, because every frame needs it.
  heatOf(node) {
    if (!node.isGroup) return this.marks.heat(node.index, this.colors);
    if (!(this.colors in (node.known ||= {}))) node.known[this.colors] = leavesOf(node).reduce((most, leaf) => Math.max(most, this.marks.heat(leaf.index, this.colors)), 0);
    return node.known[this.colors];
  }

  fill(node) {
    if (node.feature) return this.color("select");
    if (this.isCategory()) {
      const found = this.categoryOf(node);
      if (!found) return this.color("panel");
      const variable = /^var\(--(.*)\)$/.exec(found[1]);
      return variable ? this.color(variable[1]) : found[1];
    }
    if (this.colors !== "kind") {
      const heat = this.heatOf(node);
      return heat > 0 ? `color-mix(in srgb, ${this.color("error")} ${Math.round(15 + heat * 75)}%, ${this.color("panel")})` : this.color("panel");
    }
    return node.isGroup ? this.color("panel") : this.color(familyOf(node.op.type));
  }

  worst(node) {
    if (node.isGroup || !node.op) return null;
    return this.marks.worst(node.index);
  }

  paintMap(view) {
    const { width, height } = layOut(this.tree.root);
    const ratio = devicePixelRatio || 1;
    const size = 160;
    this.map.width = this.map.height = size * ratio;
    const context = this.map.getContext("2d");
    const scale = Math.min(size / width, size / height);
    this.mapped = { scale, dx: (size - width * scale) / 2, dy: (size - height * scale) / 2 };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.translate(this.mapped.dx, this.mapped.dy);
    context.scale(scale, scale);
    for (const { node, x, y, width: w, height: h } of layOut(this.tree.root).nodes) {
      context.fillStyle = node.isGroup ? this.color("faint") : this.fill(node);
      context.fillRect(x, y, w, h);
    }
    context.strokeStyle = this.color("accent");
    context.lineWidth = 2 / scale;
    context.strokeRect(view.left, view.top, view.right - view.left, view.bottom - view.top);
  }

  // The innermost box at a point of the canvas.
  at(px, py) {
    let [x, y, group, found] = [(px - this.x) / this.scale, (py - this.y) / this.scale, this.tree.root, null];
    for (;;) {
      const hit = layOut(group).nodes.find((box) => x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height);
      if (!hit) return found;
      found = hit.node;
      if (!found.isGroup || !found.open) return found;
      [x, y, group] = [x - hit.x, y - hit.y, found];
    }
  }

  // The position of a box in the whole graph. The groups around it must be open.
  placeOf(node) {
    const box = layOut(node.parent).nodes.find((box) => box.node === node);
    if (!box) return null;
    const outer = node.parent.parent ? this.placeOf(node.parent) : { x: 0, y: 0 };
    return { x: outer.x + box.x, y: outer.y + box.y, width: box.width, height: box.height };
  }

  toggle(group) {
    const before = this.placeOf(group);
    group.open = !group.open;
    invalidate(group);
    const after = this.placeOf(group);
    this.x += (before.x - after.x) * this.scale;
    this.y += (before.y - after.y) * this.scale;
    this.draw();
  }

  // Opens the groups around an operation, selects the operation and scrolls to it.
  reveal(node) {
    for (let at = node.parent; at; at = at.parent) if (!at.open) { at.open = true; invalidate(at); }
    this.select(node);
    const place = this.placeOf(node);
    const box = this.stage.getBoundingClientRect();
    this.scale = Math.max(this.scale, 0.7);
    this.x = box.width / 2 - (place.x + place.width / 2) * this.scale;
    this.y = box.height / 2 - (place.y + place.height / 2) * this.scale;
    this.draw();
  }

  select(node) { this.selected = node; this.onselect(node); this.draw(); }

  zoom(factor, px, py) {
    const next = Math.min(3, Math.max(0.02, this.scale * factor));
    this.x = px - (px - this.x) * next / this.scale;
    this.y = py - (py - this.y) * next / this.scale;
    this.scale = next;
    this.draw();
  }

  listen() {
    const { canvas } = this;
    const pointers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (pointers.size === 1) { this.x += dx; this.y += dy; }
      else {
        const other = [...pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId);
        const distance = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY) || 1;
        const box = canvas.getBoundingClientRect();
        this.zoom(distance(event) / distance(before), other.clientX - box.left, other.clientY - box.top);
      }
      moved += Math.abs(dx) + Math.abs(dy);
      pointers.set(event.pointerId, event);
      this.draw();
    });
    const release = (event) => {
      if (!pointers.delete(event.pointerId) || moved > 4 || event.type === "pointercancel") return;
      const box = canvas.getBoundingClientRect();
      const node = this.at(event.clientX - box.left, event.clientY - box.top);
      if (node) this.select(node);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("dblclick", (event) => {
      const box = canvas.getBoundingClientRect();
      let node = this.at(event.clientX - box.left, event.clientY - box.top);
      if (node && node.isGroup) this.toggle(node);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const box = canvas.getBoundingClientRect();
      const act = { "+": () => this.zoom(1.25, box.width / 2, box.height / 2), "=": () => this.zoom(1.25, box.width / 2, box.height / 2),
        "-": () => this.zoom(0.8, box.width / 2, box.height / 2), 0: () => this.fit(),
        ArrowDown: () => this.step(1), ArrowUp: () => this.step(-1), ArrowRight: () => this.sibling(1), ArrowLeft: () => this.sibling(-1),
        Enter: () => { if (this.selected && this.selected.isGroup) this.toggle(this.selected); } }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    this.map.addEventListener("click", (event) => {
      const [map, box] = [this.map.getBoundingClientRect(), this.stage.getBoundingClientRect()];
      this.x = box.width / 2 - (event.clientX - map.left - this.mapped.dx) / this.mapped.scale * this.scale;
      this.y = box.height / 2 - (event.clientY - map.top - this.mapped.dy) / this.mapped.scale * this.scale;
      this.draw();
    });
  }

  // Selects the next or previous box along the connections within the selected box's group.
  step(direction) {
    const from = this.selected;
    if (!from) { this.reveal(this.tree.root.children[0]); return; }
    const { edges } = from.parent;
    const next = direction > 0 ? [...(edges.get(from) || new Map()).keys()]
      : [...edges].filter(([, targets]) => targets.has(from)).map(([source]) => source);
    if (next.length > 0) this.reveal(next[0]);
  }

  sibling(direction) {
    if (!this.selected) return;
    const { children } = this.selected.parent;
    this.reveal(children[(children.indexOf(this.selected) + direction + children.length) % children.length]);
  }
}

function leavesOf(group) {
  return group.children.flatMap((child) => child.isGroup ? leavesOf(child) : child.op ? [child] : []);
}
