// Any number of runs beside one another: their curves, what differs between them, and what a metric depends on. Needs charts.js, curves.js.
//
//   new Many(told, source, options)      told: of studio/compare/together.py; source: as of Curves
//
// options: query: what the address holds; keep(query): is told of another one; trouble(error); link(key): where a run is shown, or none.
"use strict";

const VIEWS = { curves: "Curves", differences: "What differs", parameters: "Parameters" };
const ALL = { ...USUAL, view: "curves", group: "", off: "", metric: "", x: "" };

class Many {
  constructor(told, source, options) {
    Object.assign(this, { told, options, look: lookAt(options.query, ALL) });
    this.off = new Set(this.look.off.split(",").filter(Boolean).map(Number));
    this.places = new Map(told.runs.map((run, at) => [run.name, at]));
    this.curves = new Curves(source, {
      look: this.look, keep: () => this.keep(), trouble: options.trouble, hidden: () => told.runs.filter((_, at) => this.off.has(at)).map(run => run.name),
      group: () => this.grouping(), colour: name => this.places.get(name) ?? 0, toggle: name => this.toggle(this.places.get(name)),
    });
    this.legend = make("div", { class: "legend", id: "overlaid" });
    this.tabs = make("nav", { class: "tabs", "aria-label": "views" }, ...Object.entries(VIEWS).map(([view, words]) => {
      const tab = button(words, () => { this.set("view", view); this.show(); }, "tab");
      tab.dataset.view = view;
      return tab;
    }));
    this.body = make("div");
    const columns = Object.keys(told.columns).filter(name => new Set(told.columns[name].map(String)).size > 1);
    const groups = chooser("group", "group by", [["", "each run by itself"], ...columns.map(name => [name, "grouped by " + name])], this.look.group, value => { this.set("group", value); this.curves.draw(); });
    this.element = make("div", {}, make("div", { class: "card" }, make("div", { class: "bar" }, make("h1", {}, told.runs.length + (told.runs.length === 1 ? " run" : " runs")), groups, button("All", () => this.switch([])), button("None", () => this.switch(told.runs.keys()))), this.legend), this.tabs, this.body);
    this.show();
  }

  keep() { if (this.options.keep) this.options.keep(queryOf(this.look, ALL)); }

  set(name, value) { this.look[name] = value; this.keep(); }

  grouping() {
    const { group } = this.look, held = this.told.columns[group];
    return held ? name => group.replace(/^\w+\./, "") + " = " + (held[this.places.get(name)] ?? "none") : null;
  }

  toggle(at) { const off = new Set(this.off); if (!off.delete(at)) off.add(at); this.switch(off); }

  switch(off) {
    this.off = new Set(off);
    this.set("off", [...this.off].sort((a, b) => a - b).join(","));
    this.runs();
    if (this.look.view === "curves") this.curves.draw(); else this.view();
  }

  runs() { // which of them are shown
    const { link } = this.options, active = document.activeElement && document.activeElement.dataset.run;
    this.legend.replaceChildren(...this.told.runs.map((run, at) => {
      const chip = button("", () => this.toggle(at), "chip");
      chip.dataset.run = at;
      chip.setAttribute("aria-pressed", String(!this.off.has(at)));
      chip.append(sample(at), run.name);
      const words = [run.state === "Completed" ? "" : run.state, run.measured ? "" : "no metrics"].filter(Boolean).join(", ");
      return make("span", { class: "chip" }, chip, words ? make("span", { class: "soft" }, words) : null, link ? make("a", { href: link(run.key), "aria-label": "open " + run.name }, "↗") : null);
    }));
    if (active !== undefined) this.legend.querySelector("[data-run='" + active + "']")?.focus();
  }

  show() {
    for (const tab of this.tabs.children) if (tab.dataset.view === this.look.view) tab.setAttribute("aria-current", "true"); else tab.removeAttribute("aria-current");
    this.runs();
    this.view();
  }

  view() { this.body.replaceChildren(...(this[this.look.view in VIEWS ? "_" + this.look.view : "_curves"]())); }

  _curves() { return [this.curves.element]; }

  async read() { // what is new; when to come again, in milliseconds
    const told = await this.curves.read(), going = this.told.runs.some(run => run.state === "InProgress");
    return told.whole ? going ? 3000 : 8000 : 50;
  }

  on() { return this.told.runs.map((run, at) => [run, at]).filter(([, at]) => !this.off.has(at)); }

  _differences() { // a row for each thing in which two of the runs that are on differ
    const on = this.on(), rows = this.told.differs.filter(([, , values]) => new Set(on.map(([, at]) => JSON.stringify(values[at])).filter(value => value !== '"not known"')).size > 1);
    const cell = (value, first) => make("td", { title: value === null ? null : String(value), class: first !== undefined && JSON.stringify(value) !== JSON.stringify(first) ? "other" : null }, value === null ? make("span", { class: "soft" }, "none") : short(value));
    const parts = [];
    for (const section of new Set(rows.map(([section]) => section))) {
      const held = rows.filter(([one]) => one === section);
      parts.push(make("tbody", { "data-section": section }, make("tr", {}, make("th", { colspan: on.length + 1, scope: "rowgroup", class: "section" }, section)),
        ...held.map(([, name, values]) => make("tr", {}, make("th", { scope: "row" }, name), ...on.map(([, at], place) => cell(values[at], place ? values[on[0][1]] : undefined))))));
    }
    const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "what"), ...on.map(([run, at]) => make("th", { scope: "col" }, sample(at), " " + run.name))));
    const table = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "what differs" }, make("table", { id: "differs" }, head, ...parts));
    return [make("div", { class: "card" }, make("h2", {}, "What differs"), rows.length ? table : make("p", {}, "nothing that is known"), ...this.told.unknown.map(words => make("p", { class: "soft" }, "not compared: " + words)))];
  }

  _parameters() {
    const { columns, metrics, importance } = this.told, names = Object.keys(metrics);
    if (!names.length) return [make("div", { class: "card" }, make("p", {}, "none of these runs has a metric"))];
    const on = this.on(), had = name => on.filter(([, at]) => typeof metrics[name][at] === "number").length, most = names.reduce((best, name) => had(name) > had(best) ? name : best);
    const metric = names.includes(this.look.metric) ? this.look.metric : most;
    const axes = [...Object.keys(columns), ...names].filter(name => name !== metric), x = axes.includes(this.look.x) ? this.look.x : axes[0] || "";
    const value = (name, at) => (columns[name] || metrics[name])[at], finite = one => typeof one === "number" ? one : null;
    const differing = Object.keys(columns).filter(name => name.startsWith("hp.") && new Set(on.map(([, at]) => String(columns[name][at]))).size > 1).slice(0, 14);
    const rows = on.filter(([, at]) => finite(metrics[metric][at]) !== null).map(([run, at]) => ({ name: run.name, key: run.key, colour: at, values: [...differing.map(name => columns[name][at]), metrics[metric][at]] }));
    const points = x ? rows.map(row => [value(x, row.colour), metrics[metric][row.colour], row.colour, row.name + ": " + x + " " + short(value(x, row.colour)) + ", " + metric + " " + short(metrics[metric][row.colour]), row.key]).filter(([place]) => place !== null && place !== undefined && (typeof place === "number" || x in columns)) : [];
    const choose = (id, words, options, value, name) => make("label", { class: "box" }, words, chooser(id, words, options.map(one => [one, one]), value, one => { this.set(name, one); this.view(); document.getElementById(id).focus(); }));
    const shares = importance[metric] || [];
    const card = (title, drawn, words) => make("div", { class: "card" }, make("h2", {}, title), drawn ? figure(drawn).element : make("p", { class: "soft" }, words));
    return [make("div", { class: "bar" }, choose("metric", "metric", names, metric, "metric"), x ? choose("across", "against", axes, x, "x") : null),
      card("Parallel coordinates", differing.length && rows.length > 1 && { kind: "parallel", axes: [...differing.map(name => ({ name: name.slice(3) })), { name: metric }], rows }, "needs two runs that are on and have " + metric + ", and a hyperparameter in which they differ"),
      card("Scatter", points.length && { kind: "points", across: x, up: metric, points, title: "scatter" }, "no run that is on has both"),
      card("Importance for " + metric + ", of all " + this.told.runs.length + " runs", shares.length && { kind: "ranked", rows: shares }, this.told.why)];
  }
}

function manyOfFile() { // of a file: what the page asks its server for lies in it
  const held = JSON.parse(document.getElementById("told").textContent), place = document.getElementById("many");
  const source = async asked => {
    const all = Object.values(held.charts).map(chart => chart[asked.axis] || chart[""]);
    return { titles: all.map(chart => chart.title), charts: askedFor(all, asked), whole: true };
  };
  const many = new Many(held.told, source, { query: location.hash.slice(1), keep: query => history.replaceState(null, "", "#" + query), trouble: error => { throw error; } });
  place.replaceChildren(many.element);
  many.read();
}
