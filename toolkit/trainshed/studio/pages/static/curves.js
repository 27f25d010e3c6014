// All metrics of a run, or of several over one another, as charts: found by a regular expression, folded by the part of their names
// before the first slash, drawn when they are seen. Needs charts.js.
//
//   new Curves(source, options)
//
// source(asked) answers with {charts, titles, whole}, as ui/plots.py does for asked = {known, seen, axis, parts, title, low, high}.
// options: look (texts, of lookAt), keep(query), trouble(error), plain: over time, from 0 on, all of them, without controls;
// of several runs: hidden() their names that are off, group() a function of a name or null, colour(name), toggle(name).
"use strict";

const USUAL = { find: "", axis: "", log: "", logx: "", smooth: "3" }; // what an address need not say

const lookAt = (query, usual = USUAL) => { const given = new URLSearchParams(query || ""); return Object.fromEntries(Object.entries(usual).map(([name, text]) => [name, given.get(name) ?? text])); };
const queryOf = (look, usual = USUAL) => new URLSearchParams(Object.entries(look).filter(([name, text]) => text !== usual[name]));

// Of charts that are all here, those that are asked for: as ui/plots.py chooses them.
const askedFor = (charts, { known, seen, title }) => charts.filter(one => title !== undefined ? one.title === title : (known || {})[one.title] !== one.count && (!seen || seen.includes(one.title)));

function chooser(id, words, options, value, act) { // options: [value, text]
  const made = make("select", { id, "aria-label": words }, ...options.map(([value, text]) => make("option", { value }, text)));
  made.value = options.some(([one]) => one === value) ? value : options[0] ? options[0][0] : "";
  made.addEventListener("change", () => act(made.value));
  return made;
}

class Curves {
  constructor(source, options) {
    Object.assign(this, { source, options, look: options.look || { ...USUAL }, cards: new Map(), known: {}, seen: new Set(), titles: [] });
    this.grid = make("div", { class: options.plain ? "charts" : null });
    this.note = make("p", { class: "soft" });
    const help = make("span", { class: "soft" }, "drag, or press +, to look closer; double-click or Escape to look at all");
    if (options.plain) { this.element = make("div", {}, make("div", { class: "bar" }, help), make("h2", { class: "unseen" }, "Charts"), this.grid, this.note); return; }
    this.watch = new IntersectionObserver(entries => {
      for (const { target, isIntersecting } of entries) this.seen[isIntersecting ? "add" : "delete"](target.dataset.chart);
      clearTimeout(this.soon);
      this.soon = setTimeout(() => { if (this.element.isConnected) this.read().catch(options.trouble); }, 30);
    }, { rootMargin: "300px" });
    this.count = make("span", { class: "soft", id: "charts-count", role: "status" });
    this.element = make("div", {}, make("div", { class: "bar" }, this.finder(), this.count, this.box("log", "log y"), this.box("logx", "log x"), this.smoothing(), this.across(), help), make("h2", { class: "unseen" }, "Charts"), this.grid, this.note);
  }

  set(name, text) {
    this.look[name] = text;
    if (this.options.keep) this.options.keep(this.look);
  }

  finder() {
    const find = make("input", { type: "search", id: "find-chart", placeholder: "regular expression: loss|^grad/", "aria-label": "which metrics" });
    find.value = this.look.find;
    find.addEventListener("input", () => { this.set("find", find.value); this.arrange(); });
    return find;
  }

  box(name, words) {
    const input = make("input", { type: "checkbox", id: "with-" + name });
    input.checked = this.look[name] === "1";
    input.addEventListener("change", () => { this.set(name, input.checked ? "1" : ""); this.draw(); });
    return make("label", { class: "box" }, input, words);
  }

  smoothing() {
    const input = make("input", { type: "range", id: "with-smooth", min: 0, max: 10, step: 1 });
    input.value = this.look.smooth;
    input.addEventListener("input", () => { this.set("smooth", input.value); this.draw(); });
    return make("label", { class: "box" }, "smoothing", input);
  }

  across() {
    const options = [["", "steps, epochs or time"], ["step", "steps"], ["epoch", "epochs"], ["time", "time"]];
    return chooser("axis", "axis", options, this.look.axis, value => { this.set("axis", value); this.known = {}; this.read().catch(this.options.trouble); });
  }

  drawn() { // the look, as the engine takes it
    const { look, options } = this;
    return options.plain ? {} : { log: look.log === "1", logx: look.logx === "1", smooth: Number(look.smooth) || 0, hidden: options.hidden && options.hidden(), group: options.group && options.group() };
  }

  draw() { for (const card of this.cards.values()) card.draw(); }

  ask(asked) { return this.source({ axis: this.options.plain ? "time" : this.look.axis, parts: 300, ...asked }); }

  async read() {
    const told = await this.ask({ known: this.known, ...(this.watch ? { seen: [...this.seen] } : {}) });
    this.titles = told.titles;
    for (const title of told.titles) if (!this.cards.has(title)) this.cards.set(title, new Card(this, title));
    if (told.titles.join("\n") !== this.arranged) { this.arranged = told.titles.join("\n"); this.arrange(); }
    for (const chart of told.charts) { // when all have their places, and so their widths
      this.known[chart.title] = chart.count;
      this.cards.get(chart.title).take(chart);
    }
    this.note.textContent = !told.titles.length ? (told.whole ? (this.options.plain ? "nothing has been measured yet" : "no metrics") : "reading …") : told.whole ? "" : "reading older values …";
    return told;
  }

  arrange() {
    if (this.options.plain) { this.grid.replaceChildren(...this.titles.map(title => this.cards.get(title).element)); return; }
    let fits = () => true;
    try { const wanted = new RegExp(this.look.find, "i"); fits = title => wanted.test(title); this.count.className = "soft"; }
    catch (error) { this.count.className = "bad"; this.count.textContent = "not a regular expression: " + error.message.replace(/^.*: /, ""); return; }
    const groups = new Map(), shown = this.titles.filter(fits);
    for (const title of shown) {
      const group = title.includes("/") ? title.slice(0, title.indexOf("/")) : "";
      groups.set(group, [...(groups.get(group) || []), title]);
    }
    this.count.textContent = shown.length === this.titles.length ? shown.length + " charts" : shown.length + " of " + this.titles.length + " charts";
    const folded = new Set([...this.grid.querySelectorAll("details:not([open])")].map(one => one.dataset.group));
    this.grid.replaceChildren(...[...groups].map(([group, titles]) => {
      const grid = make("div", { class: "charts" }, ...titles.map(title => this.cards.get(title).element));
      return groups.size < 2 ? grid : make("details", { open: !folded.has(group) && "", "data-group": group }, make("summary", {}, (group || "others") + " (" + titles.length + ")"), grid);
    }));
    for (const title of shown) { this.watch.unobserve(this.cards.get(title).element); this.watch.observe(this.cards.get(title).element); }
  }
}

class Card { // one metric
  constructor(owner, title) {
    this.owner = owner; this.title = title;
    this.element = make("div", { class: owner.options.plain ? "card" : "card later", "data-chart": title }, make("h3", {}, title));
  }

  take(chart) {
    if (this.figure && this.figure.range && this.chart.axis === chart.axis) return; // somebody looks at a part of it
    if (this.figure) this.figure.range = null;
    this.chart = chart;
    this.draw();
  }

  draw() {
    if (!this.chart) return;
    const { colour } = this.owner.options, lines = this.chart.lines;
    const spec = colour ? { ...this.chart, lines: lines.map(line => ({ ...line, colour: colour(line.name) })) } : this.chart;
    if (this.figure) { this.figure.draw(spec, this.owner.drawn()); return; }
    this.element.classList.remove("later");
    const { toggle } = this.owner.options;
    this.figure = figure(spec, this.owner.drawn(), { toggle, zoom: (low, high) => this.zoom(low, high), whole: () => this.whole() });
    this.element.append(this.figure.element);
    this.figure.redraw(); // with the width of its place
  }

  async zoom(low, high) { // with all the values that there are
    try {
      const told = await this.owner.ask({ title: this.title, low, high, parts: 600 });
      if (told.charts.length) this.chart = told.charts[0];
      this.draw();
    } catch (error) { this.owner.options.trouble(error); }
  }

  whole() {
    this.owner.known[this.title] = -1;
    this.owner.read().catch(this.owner.options.trouble);
    this.draw();
  }
}
