"use strict";
// Builds a tree of modules from a function's operations, and computes the positions of its boxes. dagre lays
// out each open group separately. A change therefore needs a new layout only for one group and the groups
// around it.

const BOX = { width: 170, height: 40 };
const PADDING = { side: 12, top: 26, bottom: 12 };
// dagre's time grows faster than the number of boxes, so larger groups are divided into parts.
const MOST_CHILDREN = 160;
const PART = 80;

class Group {
  constructor(label, path, parent) {
    Object.assign(this, { label, path, parent, children: [], edges: new Map(), open: false, count: 0, layout: null });
    this.depth = parent ? parent.depth + 1 : 0;
  }
  get isGroup() { return true; }
}

function treeOf(fn) {
  const root = new Group(fn.name, "", null);
  root.open = true;
  const groups = new Map([["", root]]);
  function groupAt(path) {
    let group = groups.get(path);
    if (!group) {
      const cut = path.lastIndexOf(".");
      const parent = groupAt(cut < 0 ? "" : path.slice(0, cut));
      group = new Group(cut < 0 ? path : path.slice(cut + 1), path, parent);
      parent.children.push(group);
      groups.set(path, group);
    }
    return group;
  }
  const leaves = fn.ops.map((op, index) => {
    const path = op.parent === undefined ? op.module : `${fn.ops[op.parent].module}.${fn.ops[op.parent].name} (block)`.replace(/^\./, "");
    const group = groupAt(path);
    const leaf = { op, index, parent: group, depth: group.depth + 1, label: op.type, isGroup: false };
    group.children.push(leaf);
    return leaf;
  });
  const features = [...fn.inputs, ...fn.states];
  const inputs = features.map((feature, index) =>
    ({ feature, role: index < fn.inputs.length ? "input" : "state", parent: root, depth: 1, label: feature.name, isGroup: false }));
  const outputs = fn.outputs.map((feature) => ({ feature, role: "output", parent: root, depth: 1, label: feature.name, isGroup: false }));
  root.children.push(...inputs, ...outputs);
  merge(root);
  divide(root);
  // The order of inputs counts inputs and states together.
  const order = fn.input_order;
  const edge = (from, to) => {
    let [x, y] = [from, to];
    while (x.depth > y.depth) x = x.parent;
    while (y.depth > x.depth) y = y.parent;
    if (x === y) return;
    while (x.parent !== y.parent) { x = x.parent; y = y.parent; }
    const list = x.parent.edges;
    if (!list.has(x)) list.set(x, new Map());
    list.get(x).set(y, (list.get(x).get(y) || 0) + 1);
  };
  fn.ops.forEach((op, index) => {
    for (const from of op.from) {
      const source = from >= 0 ? leaves[from] : inputs[order[-1 - from]];
      if (source) edge(source, leaves[index]);
    }
  });
  fn.outputs.forEach((feature, index) => { if (feature.op !== null && leaves[feature.op]) edge(leaves[feature.op], outputs[index]); });
  count(root);
  return { root, leaves };
}

// Replaces a group with a single child by the child, which gets both names.
function merge(group) {
  group.children = group.children.map((child) => {
    if (!child.isGroup) return child;
    merge(child);
    if (child.children.length !== 1) return child;
    const only = child.children[0];
    if (only.isGroup) only.label = `${child.label}.${only.label}`;
    only.parent = group;
    return only;
  });
  const settle = (node, depth) => {
    node.depth = depth;
    if (node.isGroup) node.children.forEach((child) => settle(child, depth + 1));
  };
  if (!group.parent) settle(group, 0);
}

function divide(group) {
  group.children.filter((child) => child.isGroup).forEach(divide);
  if (group.children.length <= MOST_CHILDREN) return;
  const [parts, rest] = [[], group.children];
  for (let at = 0; at < rest.length; at += PART) {
    const last = Math.min(at + PART, rest.length);
    const part = new Group(`part ${parts.length + 1}: ${at + 1}–${last}`, `${group.path}#${parts.length}`, group);
    part.children = rest.slice(at, last);
    parts.push(part);
  }
  group.children = parts;
  const settle = (node, parent) => {
    node.parent = parent;
    node.depth = parent.depth + 1;
    if (node.isGroup) node.children.forEach((child) => settle(child, node));
  };
  parts.forEach((part) => settle(part, group));
  divide(group);
}

function count(group) {
  group.count = 0;
  for (const child of group.children) group.count += child.isGroup ? count(child) : child.op ? 1 : 0;
  return group.count;
}

// Opens groups from the outside in while the graph remains readable.
function openSome(root, most = 60) {
  let visible = root.children.length;
  const queue = root.children.filter((child) => child.isGroup);
  while (queue.length > 0) {
    const group = queue.shift();
    if (visible + group.children.length > most) continue;
    group.open = true;
    visible += group.children.length - 1;
    queue.push(...group.children.filter((child) => child.isGroup));
  }
}

// The positions of everything in a group, relative to its upper left corner.
function layOut(group) {
  if (group.layout) return group.layout;
  const graph = new dagre.graphlib.Graph();
  const few = group.children.length <= 60;
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, marginx: 0, marginy: 0, ranker: few ? "network-simplex" : "longest-path" });
  graph.setDefaultEdgeLabel(() => ({}));
  const ids = new Map(group.children.map((child, index) => [child, String(index)]));
  for (const child of group.children) {
    const inner = child.isGroup && child.open ? layOut(child) : BOX;
    graph.setNode(ids.get(child), { width: inner.width, height: inner.height });
  }
  for (const [from, targets] of group.edges) for (const to of targets.keys()) graph.setEdge(ids.get(from), ids.get(to));
  dagre.layout(graph);
  const { side, top, bottom } = group.parent ? PADDING : { side: 12, top: 12, bottom: 12 };
  const nodes = group.children.map((child) => {
    const { x, y, width, height } = graph.node(ids.get(child));
    return { node: child, x: x - width / 2 + side, y: y - height / 2 + top, width, height };
  });
  const edges = graph.edges().map((edge) => graph.edge(edge).points.map((point) => ({ x: point.x + side, y: point.y + top })));
  const size = graph.graph();
  const finite = (number) => Number.isFinite(number) ? number : 0;
  group.layout = { nodes, edges, width: Math.max(finite(size.width) + 2 * side, BOX.width), height: finite(size.height) + top + bottom };
  return group.layout;
}

// Discards the layout of a group and of the groups around it after it was opened or closed.
function invalidate(group) {
  for (let at = group; at; at = at.parent) at.layout = null;
}
