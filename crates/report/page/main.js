"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  window.report = data;
  document.getElementById("title").textContent = data.title;
  document.getElementById("generator").textContent = `Made by ${data.generator}`;
  let goTo = () => {};
  let choose = () => {};
  showFindings(data, (place) => goTo(place));
  showSummary(data);
  showProgram(data, (place) => goTo(place));
  showChanges(data);
  showPictures(data);
  showDrift(data, (place) => goTo(place));
  showTime(data, (place) => goTo(place));
  const functions = data.models.flatMap((model, m) => model.functions.map((fn, f) => ({ model, fn, m, f })));
  if (functions.length > 0) graphSection();
  showOperations(data, (place) => goTo(place));
  showWeights(data);
  showMemory(data, (place) => goTo(place));

  function graphSection() {
    const box = section("graph", "Graph");
    const planned = data.models.some((model) => model.planned);
    const picker = element("select", { "aria-label": "Function", onchange: () => show(functions[picker.selectedIndex]) },
      ...functions.map(({ model, fn }) => element("option", {}, data.models.length > 1 || model.functions.length > 1 ? `${model.name}: ${fn.name}` : fn.name)));
    picker.hidden = functions.length === 1;
    const colors = element("select", { "aria-label": "Colour by", onchange: () => { view.colors = colors.value; view.draw(); legend(); } },
      ...[data.program && ["partition", "partition"], ["device", planned ? "device (Core ML's plan)" : "device (forecast)"], ["kind", "kind of operation"], ["arithmetic", "arithmetic"],
        planned ? ["cost", "share of cost (Core ML's plan)"] : ["engine", "off the Neural Engine (forecast)"], data.timing && ["time", "time"], data.drift && ["drift", "drift"]]
        .filter((entry) => entry).map(([value, text]) => element("option", { value }, text)));
    colors.value = data.program ? "partition" : "kind";
    const search = element("input", { type: "search", id: "search", "aria-label": "Search operations", placeholder: "search (press /)" });
    const found = element("span", { class: "faint", role: "status" });
    const all = (open) => element("button", { onclick: () => { setAll(current.tree.root, open); view.fit(); } }, open ? "Open all" : "Close all");
    const fit = element("button", { onclick: () => view.fit() }, "Fit");
    const stage = element("div", { class: "stage" });
    const details = element("div", { class: "details", role: "region", tabindex: "0", "aria-live": "polite", "aria-label": "Selected operation" });
    const key = element("div", { class: "legend" });
    box.append(element("div", { class: "tools" }, picker, search, found, element("label", {}, "colour by ", colors), all(true), all(false), fit), element("div", { class: "graph" }, stage, details), key);
    let current = null;
    let hits = [];
    let hit = 0;
    const view = new GraphView(stage, { marks: null, select: (node) => describe(node) });
    window.graphView = view;
    view.colors = colors.value;
    const trees = new Map();

    function legend() {
      const swatch = (text, color) => element("span", {}, element("i", { style: `background: ${color}` }), text);
      if (view.isCategory()) {
        const found = new Map(current.fn.ops.map((op, index) => view.marks.category(index, view.colors)).filter((entry) => entry));
        const entries = [...found].slice(0, 24).map(([text, color]) => swatch(text, color));
        if (found.size > 24) entries.push(element("span", {}, `and ${found.size - 24} more`));
        key.replaceChildren(...entries);
        return;
      }
      const entries = view.colors === "kind" ? FAMILIES.map(([name, , text]) => swatch(text, `var(--${name})`))
        : [swatch("more", "var(--error)"), swatch("less", "var(--panel)")];
      key.replaceChildren(...entries);
    }
    function describe(node) {
      details.replaceChildren(...detailsOf(node, { model: current.model, marks: view.marks, tree: current.tree, reveal: (leaf) => view.reveal(leaf) }));
      details.scrollTop = 0;
    }
    function show(entry) {
      if (!trees.has(entry)) {
        const tree = treeOf(entry.fn);
        openSome(tree.root);
        trees.set(entry, tree);
      }
      current = { ...entry, tree: trees.get(entry) };
      view.marks = new Marks(data, entry.m, entry.f);
      view.show(entry.fn, current.tree);
      describe(null);
      legend();
      look();
    }
    function setAll(group, open) {
      for (const child of group.children) if (child.isGroup) { child.open = open; child.layout = null; setAll(child, open); }
      group.layout = null;
    }
    function look() {
      const text = search.value.trim().toLowerCase();
      hits = text === "" ? [] : current.tree.leaves.filter(({ op }) => `${op.type} ${op.name} ${op.module} ${op.source || ""}`.toLowerCase().includes(text));
      hit = -1;
      view.matches = new Set(hits);
      found.textContent = text === "" ? "" : `${hits.length} found`;
      view.draw();
    }
    search.addEventListener("input", look);
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || hits.length === 0) return;
      hit = (hit + (event.shiftKey ? -1 : 1) + hits.length) % hits.length;
      found.textContent = `${hit + 1} of ${hits.length}`;
      view.reveal(hits[hit]);
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      search.focus();
    });
    choose = (model, fn) => {
      const index = functions.findIndex((entry) => entry.m === model && entry.f === fn);
      picker.selectedIndex = index;
      show(functions[index]);
      box.scrollIntoView();
    };
    goTo = (place) => {
      if (current.m !== place.model || current.f !== place.function) choose(place.model, place.function);
      box.scrollIntoView();
      view.reveal(current.tree.leaves[place.op]);
    };
    // Paint the text above first, because the layout of a large graph takes time.
    requestAnimationFrame(() => setTimeout(() => show(functions[0]), 0));
  }

  // The sections did not exist yet when the browser searched for the address's section.
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named) named.scrollIntoView();
})();
