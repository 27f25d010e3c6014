// The page over the runs. Texts of runs are only ever put into the page as text (`textContent`), never as markup.
"use strict";

const COLOURS = matchMedia("(prefers-color-scheme: dark)").matches
  ? ["#6ea8fe", "#ffa15c", "#63c784", "#bf93f2", "#f27fa9", "#4fc7d6", "#d4b062", "#9aa7ba"]
  : ["#2467c9", "#dd6b20", "#2b8a4b", "#8a4fc7", "#c2326a", "#0f8b9a", "#8d6a1f", "#5f6b7c"];
const STATES = { Completed: "good", Failed: "bad", Lost: "bad", InProgress: "go", Stopping: "warn", Stopped: "warn" };
const ROW = 38; // pixels, as in style.css
const main = document.getElementById("main");

// --- the token: from the address, which then forgets it ---------------------------------------------------------------

const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
if (given) {
  localStorage.setItem("trainshed-token", given[1]);
  history.replaceState(null, "", "#/");
}

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path, body) {
  const headers = { Authorization: "Bearer " + (localStorage.getItem("trainshed-token") || "") };
  const options = { headers };
  if (body !== undefined) {
    options.method = "POST";
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused(0, "the server does not answer: is `trainshed ui` still running?");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, told.error || "status " + answer.status);
  return told;
}

function trouble(error) {
  document.getElementById("trouble").textContent = error ? error.message : "";
  if (error && error.status === 401 && !document.getElementById("token")) askForToken(error.message);
}

function askForToken(message) {
  const field = make("input", { id: "token", placeholder: "token", autocomplete: "off" });
  const enter = () => { localStorage.setItem("trainshed-token", field.value.trim()); trouble(null); route(); };
  field.addEventListener("keydown", event => { if (event.key === "Enter") enter(); });
  main.replaceChildren(make("div", { class: "card" }, make("h2", {}, "Who asks?"), make("p", {}, message),
    make("div", { class: "bar" }, field, button("Enter", enter, "main"))));
}

// --- elements ----------------------------------------------------------------------------------------------------------

function make(name, attributes, ...inside) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== false) element.setAttribute(key, value);
  element.append(...inside.filter(one => one !== null && one !== undefined));
  return element;
}

function button(text, act, kind) {
  const made = make("button", { type: "button", class: kind || null }, text);
  made.addEventListener("click", act);
  return made;
}

function table(rows, head) {
  const body = rows.map(row => make("tr", {}, ...row.map(cell => make("td", {}, cell instanceof Node ? cell : String(cell)))));
  return make("table", {}, head ? make("thead", {}, make("tr", {}, ...head.map(one => make("th", {}, one)))) : null, make("tbody", {}, ...body));
}

const pill = state => make("span", { class: "state " + (STATES[state] || "warn") }, state);
const card = (title, ...inside) => make("div", { class: "card" }, title ? make("h2", {}, title) : null, ...inside);

// --- numbers as people read them ---------------------------------------------------------------------------------------

function short(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size && (size >= 1e6 || size < 1e-4)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function lasting(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return Math.round(seconds) + " s";
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? minutes + " min " + String(Math.floor(seconds % 60)).padStart(2, "0") + " s"
    : minutes < 2880 ? Math.floor(minutes / 60) + " h " + String(minutes % 60).padStart(2, "0") + " min" : Math.floor(minutes / 1440) + " d";
}

function ago(time) {
  if (!time) return "";
  return lasting(Math.max(0, Date.now() / 1000 - time)).replace(/ \d\d (s|min)$/, "") + " ago";
}

const moment = time => time ? new Date(time * 1000).toLocaleString() : "";

function bytes(count) {
  for (const unit of ["B", "kB", "MB"]) {
    if (count < 999.5) return (unit === "B" || count >= 99.5 ? Math.round(count) : count.toFixed(1)) + " " + unit;
    count /= 1000;
  }
  return count.toFixed(1) + " GB";
}

// --- what is asked again and again: only while this view is shown, and somebody looks -----------------------------------

let shown = 0; // the number of the present view
function repeat(act) {
  const view = shown;
  async function turn() {
    if (view !== shown) return;
    let wait = 1500;
    if (!document.hidden) {
      try {
        wait = (await act()) || wait;
        if (view === shown) trouble(null);
      } catch (error) {
        if (view === shown) trouble(error);
        wait = 4000;
        if (error.status === 401) return;
      }
    }
    if (view === shown) setTimeout(turn, wait);
  }
  turn();
}

// --- the table of runs -------------------------------------------------------------------------------------------------

const runs = { version: 0, had: "", columns: [], rows: new Map(), problem: "" };
const chosen = new Set();
const look = { filter: "", state: "", sort: "-started", columns: "" }; // what the address holds

function lookOf(query) {
  const given = new URLSearchParams(query);
  for (const name of Object.keys(look)) look[name] = given.get(name) || (name === "sort" ? "-started" : "");
}

function keepLook() { // so that the address can be kept and sent on
  const query = new URLSearchParams(Object.entries(look).filter(([name, value]) => value && !(name === "sort" && value === "-started")));
  const address = "#/runs" + (query.size ? "?" + query : "");
  document.querySelector(".brand").setAttribute("href", address);
  history.replaceState(null, "", address);
}

const called = name => name.replace(/^(metric|hp|tag)\.(?=.)/, "");

const CELLS = { // by kind of the column
  time: value => make("span", { class: "soft", title: moment(value) }, ago(value)),
  duration: value => make("span", { class: "num" }, lasting(value)),
  tags: value => make("span", {}, ...Object.entries(value).map(([name, text]) => make("span", { class: "tag" }, text ? name + "=" + text : name))),
};

function cell(row, [name, kind], value) {
  if (name === "state") return make("span", {}, pill(row.state));
  if (name === "name") return make("span", {}, make("a", { href: "#/run/" + row.key }, row.name));
  if (value === null) return make("span", { class: "soft" }, "");
  if (CELLS[kind]) return CELLS[kind](value);
  const text = typeof value === "number" ? short(value) : String(value);
  return make("span", { class: typeof value === "number" ? "num" : null, title: String(value) }, text);
}

function ordered(a, b) { // numbers, then what is not finite, then texts; what a run does not have comes last either way
  if (a === b) return 0;
  if (typeof a === "object" && a) return ordered(JSON.stringify(a), typeof b === "object" ? JSON.stringify(b) : b);
  if (typeof a === typeof b) return a < b ? -1 : 1;
  return typeof a === "number" ? -1 : 1;
}

function showList() {
  where("");
  const words = make("input", { type: "search", id: "filter", placeholder: 'words, or loss < 0.3 and tag.stage = "final"', "aria-label": "filter" });
  words.value = look.filter;
  const states = make("select", { id: "state", "aria-label": "status" }, make("option", { value: "" }, "all states"));
  for (const one of ["InProgress", "Completed", "Failed", "Stopped", "Lost"]) states.append(make("option", { value: one }, one));
  states.value = look.state;
  const overlay = button("Overlay", () => { location.hash = "#/overlay/" + [...chosen].join(","); }, "main");
  overlay.id = "overlay";
  const columns = button("Columns …", () => chooseColumns(names => { look.columns = names; keepLook(); read().catch(trouble); }));
  columns.id = "columns";
  const count = make("span", { class: "soft", id: "count" });
  const wrong = make("span", { class: "bad", id: "wrong", role: "status" });
  const head = make("div", { class: "row head" }), space = make("div");
  const list = make("div", { class: "rows", id: "rows", tabindex: "0" }, space);
  main.replaceChildren(make("div", { class: "bar" }, words, states, columns, overlay, count, wrong), make("div", { class: "card runs" }, head, list));
  let rows = [], fit = null, refused = "", asked = 0;

  function heads() {
    const sizes = runs.columns.map(([name, kind]) => name === "name" ? "minmax(180px, 2fr)" : kind === "tags" || kind === "text" && name !== "state" ? "minmax(90px, 1fr)" : "minmax(100px, .6fr)");
    list.parentElement.style.setProperty("--columns", "34px " + sizes.join(" "));
    list.parentElement.style.setProperty("--wide", 34 + 130 * runs.columns.length + "px");
    head.replaceChildren(make("span"), ...runs.columns.map(([name]) => {
      const down = look.sort === "-" + name, mark = down ? " ▾" : look.sort === name ? " ▴" : "";
      const sorter = button(called(name) + mark, () => { look.sort = look.sort === name ? "-" + name : look.sort === "-" + name ? name : name === "started" ? "-" + name : name; keepLook(); heads(); draw(); });
      sorter.dataset.sort = name;
      return make("span", { title: name }, sorter);
    }));
  }

  function draw() {
    const by = look.sort.replace(/^-/, ""), down = look.sort !== by, at = runs.columns.findIndex(([name]) => name === by);
    rows = [...runs.rows.values()].filter(row => (!look.state || row.state === look.state) && (!fit || fit.has(row.key)));
    if (at >= 0) rows.sort((a, b) => { const x = a.values[at], y = b.values[at]; return x === null || y === null ? (x === null) - (y === null) : ordered(x, y) * (down ? -1 : 1); });
    count.textContent = rows.length === runs.rows.size ? rows.length + " runs" : rows.length + " of " + runs.rows.size + " runs";
    wrong.textContent = refused || runs.problem;
    space.style.height = rows.length * ROW + "px";
    marked();
    window_();
  }

  function marked() {
    overlay.disabled = chosen.size < 2;
    overlay.textContent = chosen.size < 2 ? "Overlay" : "Overlay " + chosen.size;
  }

  function window_() { // only the rows that can be seen are in the page
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4), last = Math.min(rows.length, first + Math.ceil((list.clientHeight || 800) / ROW) + 9);
    const drawn = [];
    for (let number = first; number < last; number++) {
      const one = rowOf(rows[number]);
      one.style.top = number * ROW + "px";
      drawn.push(one);
    }
    space.replaceChildren(...drawn);
  }

  function rowOf(row) {
    const box = make("input", { type: "checkbox", "aria-label": "choose " + row.name + " for an overlay" });
    box.checked = chosen.has(row.key);
    box.addEventListener("change", () => { if (box.checked) chosen.add(row.key); else chosen.delete(row.key); marked(); });
    return make("div", { class: "row", "data-key": row.key, title: row.phase }, box, ...runs.columns.map((column, at) => cell(row, column, row.values[at])));
  }

  async function filter() { // by the server, which has the language; of two questions the later one counts
    const turn = ++asked, text = look.filter.trim();
    let found = null, problem = "";
    if (text) {
      const told = await ask("/api/filter", { text });
      problem = told.problem || "";
      found = problem ? fit : new Set(told.keys);
    }
    if (turn !== asked) return;
    fit = found; refused = problem;
    draw();
  }

  async function read() {
    const query = new URLSearchParams({ since: runs.version, columns: look.columns, had: runs.had });
    const news = await ask("/api/runs?" + query);
    const anew = news.had !== runs.had;
    if (news.version < runs.version) { runs.rows.clear(); runs.version = 0; runs.had = ""; return; } // another server
    if (anew) runs.rows.clear();
    Object.assign(runs, { version: news.version, had: news.had, columns: news.columns, problem: news.problem });
    for (const row of news.rows) runs.rows.set(row.key, row);
    for (const key of news.gone) { runs.rows.delete(key); chosen.delete(key); }
    if (anew || !head.childElementCount) heads();
    if (news.rows.length || news.gone.length || !rows.length) { if (look.filter.trim()) await filter(); else draw(); }
  }

  let typing = 0;
  words.addEventListener("input", () => {
    look.filter = words.value; keepLook(); list.scrollTop = 0;
    clearTimeout(typing);
    typing = setTimeout(() => filter().catch(trouble), 150);
  });
  states.addEventListener("change", () => { look.state = states.value; keepLook(); list.scrollTop = 0; draw(); });
  list.addEventListener("scroll", window_);
  heads();
  draw();
  filter().catch(trouble);
  repeat(async () => { await read(); return 2000; });
}

async function chooseColumns(take) {
  let names;
  try { names = await ask("/api/names"); } catch (error) { trouble(error); return; }
  const on = new Set(runs.columns.map(([name]) => name)), boxes = [];
  const find = make("input", { type: "search", id: "find-column", placeholder: "find a column", "aria-label": "find a column" });
  const parts = Object.entries({ run: "Run", metric: "Metrics", hp: "Hyperparameters", tag: "Tags" }).filter(([kind]) => names[kind].length).map(([kind, title]) =>
    make("div", {}, make("h3", {}, title), ...names[kind].map(name => {
      const box = make("input", { type: "checkbox", value: name });
      box.checked = on.has(name);
      boxes.push(box);
      return make("label", { class: "box", "data-column": name }, box, called(name));
    })));
  find.addEventListener("input", () => { for (const box of boxes) box.parentElement.hidden = !box.value.toLowerCase().includes(find.value.toLowerCase()); });
  const box = make("dialog", { id: "choose" }, make("h2", {}, "Columns"), find, make("div", { class: "choices" }, ...parts));
  const kept = () => [...runs.columns.map(([name]) => name).filter(name => boxes.some(one => one.value === name && one.checked)), ...boxes.filter(one => one.checked && !on.has(one.value)).map(one => one.value)];
  box.append(make("div", { class: "bar" }, button("Show", () => { box.close(); take(kept().join(",")); }, "main"), button("The usual", () => { box.close(); take(""); }), button("Close", () => box.close())));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function where(text) {
  document.getElementById("where").textContent = text;
  document.title = (text ? text + " · " : "") + "trainshed";
}

// --- charts ------------------------------------------------------------------------------------------------------------

const options = { log: false, smooth: true, axis: "", find: "" };

function keepFind() {
  history.replaceState(null, "", location.hash.split("?")[0] + (options.find ? "?" + new URLSearchParams({ find: options.find }) : ""));
}

function smoothed(values) { // of what came before and what comes after, as in the report
  const keep = Math.exp(-1 / Math.max(2, values.length / 60));
  function pass(list) {
    let mean = 0, weight = 0;
    return list.map(value => {
      if (value === null || value === undefined) return value;
      mean = keep * mean + (1 - keep) * value;
      weight = keep * weight + 1 - keep;
      return mean / weight;
    });
  }
  const back = pass(values.slice().reverse()).reverse();
  return pass(values).map((value, at) => value === null || value === undefined ? value : (value + back[at]) / 2);
}

class Charts {
  constructor(path, more, plain) { // plain: of a machine, over time, from 0 on
    this.path = path; this.more = more || {}; this.held = new Map(); this.known = {}; this.seen = new Set();
    this.look = plain ? { log: false, smooth: false, axis: "time", plain } : options;
    this.grid = make("div", { class: plain ? "charts" : null });
    this.note = make("p", { class: "soft" });
    const help = make("span", { class: "soft" }, "drag to look closer, double-click to look at all");
    if (plain) { this.element = make("div", {}, make("div", { class: "bar" }, help), this.grid, this.note); return; }
    this.watch = new IntersectionObserver(entries => {
      for (const { target, isIntersecting } of entries) this.seen[isIntersecting ? "add" : "delete"](target.dataset.chart);
      clearTimeout(this.soon);
      this.soon = setTimeout(() => { if (this.element.isConnected) this.read().catch(trouble); }, 30);
    }, { rootMargin: "300px" });
    this.find = make("input", { type: "search", id: "find-chart", placeholder: "regular expression: loss|^grad/", "aria-label": "which metrics" });
    this.find.value = options.find;
    this.find.addEventListener("input", () => { options.find = this.find.value; keepFind(); this.arrange(); });
    this.count = make("span", { class: "soft", id: "charts-count" });
    const box = (name, text) => {
      const input = make("input", { type: "checkbox", id: "with-" + name });
      input.checked = options[name];
      input.addEventListener("change", () => { options[name] = input.checked; for (const one of this.held.values()) one.draw(); });
      return make("label", { class: "box" }, input, text);
    };
    const axis = make("select", { id: "axis", "aria-label": "axis" });
    for (const [value, text] of [["", "steps, epochs or time"], ["step", "steps"], ["epoch", "epochs"], ["time", "time"]]) axis.append(make("option", { value }, text));
    axis.value = options.axis;
    axis.addEventListener("change", () => { options.axis = axis.value; this.known = {}; this.read(); });
    this.element = make("div", {}, make("div", { class: "bar" }, this.find, this.count, box("log", "logarithmic"), box("smooth", "smoothed"), axis, help), this.grid, this.note);
  }

  ask(asked) { return ask(this.path, { ...this.more, axis: this.look.axis, parts: 300, ...asked }); }

  async read() {
    const told = await this.ask({ known: this.known, ...(this.watch ? { seen: [...this.seen] } : {}) });
    const titles = told.titles.join("\n");
    for (const title of told.titles) if (!this.held.has(title)) this.held.set(title, new Chart(this, title));
    this.titles = told.titles;
    if (titles !== this.arranged) { this.arranged = titles; this.arrange(); }
    for (const chart of told.charts) { // when all have their places, and so their widths
      this.known[chart.title] = chart.count;
      this.held.get(chart.title).take(chart);
    }
    this.note.textContent = !told.titles.length ? (told.whole ? (this.look.plain ? "nothing has been measured yet" : "no metrics") : "reading …") : told.whole ? "" : "reading older values …";
    return told;
  }

  arrange() { // by the part of their names before the first slash; each is drawn when it is seen
    if (this.look.plain) { this.grid.replaceChildren(...this.titles.map(title => this.held.get(title).element)); return; }
    let fits = () => true;
    try { const wanted = new RegExp(options.find, "i"); fits = title => wanted.test(title); this.count.className = "soft"; }
    catch (error) { this.count.className = "bad"; this.count.textContent = "not a regular expression: " + error.message.replace(/^.*: /, ""); return; }
    const groups = new Map(), shown = (this.titles || []).filter(fits);
    for (const title of shown) {
      const group = title.includes("/") ? title.slice(0, title.indexOf("/")) : "";
      groups.set(group, [...(groups.get(group) || []), title]);
    }
    this.count.textContent = shown.length === (this.titles || []).length ? shown.length + " charts" : shown.length + " of " + this.titles.length + " charts";
    const folded = new Set([...this.grid.querySelectorAll("details:not([open])")].map(one => one.dataset.group));
    this.grid.replaceChildren(...[...groups].map(([group, titles]) => {
      const grid = make("div", { class: "charts" }, ...titles.map(title => this.held.get(title).element));
      return groups.size < 2 ? grid : make("details", { open: !folded.has(group) && "", "data-group": group }, make("summary", {}, (group || "others") + " (" + titles.length + ")"), grid);
    }));
    for (const title of shown) { this.watch.unobserve(this.held.get(title).element); this.watch.observe(this.held.get(title).element); }
  }
}

class Chart {
  constructor(owner, title) {
    this.owner = owner; this.title = title; this.plot = null; this.zoomed = false;
    this.legend = make("div", { class: "legend" });
    this.place = make("div", { class: owner.look.plain ? "place" : "place later" });
    this.element = make("div", { class: "card", "data-chart": title }, make("h3", {}, title), this.legend, this.place);
    new ResizeObserver(() => { if (this.plot && Math.abs(this.width() - this.plot.width) > 3) this.draw(); }).observe(this.element);
  }

  take(chart) {
    this.place.className = "place";
    this.chart = chart;
    if (!this.zoomed) this.draw();
  }

  width() { return Math.max(240, this.place.clientWidth || 420); }

  data() {
    const lines = this.chart.lines.filter(line => line.x.length);
    const tables = [], { log, smooth: smoothing } = this.owner.look;
    this.series = [];
    lines.forEach((line, number) => {
      const colour = COLOURS[number % COLOURS.length], smooth = smoothing && line.y.length >= 50;
      const y = log ? line.y.map(value => value > 0 ? value : null) : line.y;
      tables.push([line.x, y]);
      const points = { show: line.y.length <= 24, size: 5 };
      this.series.push({ label: line.name, stroke: smooth ? colour + "50" : colour, width: smooth ? 1 : 1.6, points });
      if (smooth) {
        tables.push([line.x, smoothed(y)]);
        this.series.push({ label: line.name + ", smoothed", stroke: colour, width: 1.8, points: { show: false } });
      }
    });
    return tables.length ? uPlot.join(tables.map(unique)) : [[]];
  }

  draw() {
    const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--soft"), grid = style.getPropertyValue("--grid");
    const data = this.data();
    this.words();
    if (this.plot) this.plot.destroy();
    const time = this.chart.axis === "time";
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width(), height: 230, legend: { show: false }, cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: this.upright() },
      axes: [{ ...axis, label: this.chart.axis, labelSize: 16, labelFont: axis.font, size: 34, values: (_, marks) => marks.map(mark => time ? lasting(mark) : short(mark)) },
        { ...axis, size: 58, values: (_, marks) => marks.map(mark => mark === null ? "" : short(mark)) }],
      series: [{}, ...this.series],
      hooks: { setSelect: [plot => this.zoom(plot)], setCursor: [plot => this.words(plot)] },
    }, data, this.place);
    this.plot.over.addEventListener("dblclick", () => { this.zoomed = false; this.owner.known[this.title] = -1; this.owner.read().catch(trouble); });
  }

  upright() { // the axis of the values
    if (!this.owner.look.plain) return { distr: this.owner.look.log ? 3 : 1 };
    return { range: (_, low, high) => [0, this.chart.most || Math.max(high * 1.05, 1e-6)] };
  }

  async zoom(plot) {
    if (plot.select.width < 6) return;
    const low = plot.posToVal(plot.select.left, "x"), high = plot.posToVal(plot.select.left + plot.select.width, "x");
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    try {
      const told = await this.owner.ask({ title: this.title, low, high, parts: 600 });
      if (!told.charts.length) return;
      this.zoomed = true;
      this.chart = told.charts[0];
      this.draw();
      this.plot.setScale("x", { min: low, max: high });
    } catch (error) { trouble(error); }
  }

  words(plot) { // the legend: the last values, or those below the pointer
    const at = plot && plot.cursor.idx !== null && plot.cursor.idx !== undefined ? plot.cursor.idx : null;
    const chips = this.chart.lines.map((line, number) => {
      let value = line.last;
      if (at !== null) {
        const column = this.series.findIndex(one => one.label === line.name) + 1;
        const found = column > 0 ? plot.data[column][at] : undefined;
        if (found !== undefined && found !== null) value = found;
      }
      const odd = {};
      for (const [, kind, count] of line.odd) odd[kind] = (odd[kind] || 0) + count;
      const said = Object.entries(odd).map(([kind, count]) => count + " " + kind).join(", ");
      const swatch = make("i");
      swatch.style.background = COLOURS[number % COLOURS.length];
      return make("span", {}, swatch, line.name + " ", make("b", {}, short(value)), said ? make("span", { class: "bad" }, "▼ " + said) : null);
    });
    if (at !== null) chips.unshift(make("span", {}, this.chart.axis + " " + short(plot.data[0][at])));
    if (this.chart.once.length) chips.push(make("span", {}, "once: " + this.chart.once.join(", ")));
    this.legend.replaceChildren(...chips);
  }
}

function unique([x, y]) { // a column of a table has each place once: of two values at one place, the second moves by a hair
  const places = x.slice();
  for (let at = 1; at < places.length; at++) if (places[at] <= places[at - 1]) places[at] = places[at - 1] + Math.max(1e-9, Math.abs(places[at - 1]) * 1e-12);
  return [places, y];
}

// --- one run -----------------------------------------------------------------------------------------------------------

async function showRun(key, tab, query) {
  const path = "/api/runs/" + encodeURIComponent(key);
  let told;
  try { told = await ask(path); } catch (error) { trouble(error); if (error.status !== 401) main.replaceChildren(card("", make("p", {}, error.message))); return; }
  const view = shown;
  options.find = new URLSearchParams(query).get("find") || "";
  const top = make("div", { class: "card" });
  const tabs = make("nav", { class: "tabs" });
  for (const name of ["curves", "media", "machine", "logs", "files", "settings"]) tabs.append(make("a", { href: "#/run/" + key + "/" + name, class: name === tab ? "on" : null }, name));
  const fail = make("div");
  const body = make("div");
  main.replaceChildren(top, fail, tabs, body);
  where(told.run.name);
  let failed = "";

  function head() {
    const run = told.run;
    const stop = button("Stop …", () => confirmed("Stop " + run.name + "?", "Its script may save; then its results are collected.", "Stop it", () => act("stop", {})), "danger"), resume = button("Resume", () => act("resume", {}));
    stop.disabled = !told.can.stop; resume.disabled = !told.can.resume || told.busy;
    stop.id = "stop"; resume.id = "resume";
    if (run.state === "Completed") resume.title = "It has completed: clone it to run it again";
    const again = button("Clone …", () => clone(path, act));
    again.disabled = !told.can.clone; again.id = "clone";
    const report = button("Report", () => openTicket(path, ""));
    report.id = "report";
    const facts = [["started", moment(run.started)], ["took", run.duration === null ? "" : lasting(run.duration)], ["hosts", run.hosts || ""], ["place", run.place], ["image", run.image || ""],
      ["attempts", told.attempts > 1 ? told.attempts : ""], ["tags", Object.entries(run.tags).map(([name, text]) => name + "=" + text).join(", ")], ["folder", run.folder]];
    top.replaceChildren(
      make("div", { class: "bar" }, make("h1", {}, run.name), pill(run.state), make("span", { class: "soft" }, run.phase || ""),
        make("span", { class: "acts" }, resume, again, report, stop), make("span", { class: "soft", id: "words" }, told.words.join(" · "))),
      phases(told.phases) || "",
      make("dl", { class: "facts" }, ...facts.filter(one => one[1] !== "").map(([name, text]) => make("div", { class: name === "folder" ? "long" : null }, make("dt", {}, name), make("dd", {}, String(text))))));
    const now = JSON.stringify([told.failure, told.findings]);
    if (now === failed) return;
    failed = now;
    fail.replaceChildren();
    if (told.failure) {
      fail.append(make("div", { class: "card fail", id: "failure" }, make("h2", {}, "Why it failed"), make("b", {}, told.failure.summary),
        table(told.failure.rows), told.failure.whole ? make("pre", {}, told.failure.whole) : null));
    }
    if (told.findings.length) fail.append(make("div", { class: "card found", id: "findings" }, make("h2", {}, "What rules have found"), table(told.findings)));
  }

  async function act(what, body) {
    try {
      const answer = await ask(path + "/" + what, body);
      trouble(null);
      document.getElementById("words").textContent = answer.said;
    } catch (error) { trouble(error); document.getElementById("words").textContent = error.message; }
  }

  head();
  repeat(async () => {
    told = await ask(path);
    if (view === shown) head();
    return told.run.state === "InProgress" || told.run.state === "Stopping" || told.busy ? 1500 : 6000;
  });
  if (tab === "logs") logs(body, path, told);
  else if (tab === "machine") machine(body, path + "/machine", () => told.run.state === "InProgress");
  else if (tab === "media") media(body, path, () => told.run.state === "InProgress");
  else if (tab === "files") files(body, path, key);
  else if (tab === "settings") settings(body, told);
  else curves(body, path + "/charts", () => told.run.state === "InProgress");
}

function curves(body, path, going, more) {
  const charts = new Charts(path, more);
  body.replaceChildren(charts.element);
  repeat(async () => {
    const answer = await charts.read();
    return !answer.whole ? 50 : going() ? 1500 : 8000;
  });
  return charts;
}

// --- where a step's time goes, and the machines ------------------------------------------------------------------------

function machine(body, path, going) {
  const charts = new Charts(path, {}, true), steps = make("div");
  body.replaceChildren(steps, charts.element);
  repeat(async () => {
    const answer = await charts.read();
    steps.replaceChildren(...meanSteps(answer.verdict, answer.steps));
    return !answer.whole ? 200 : going() ? 3000 : 8000;
  });
}

function meanSteps(verdict, ranks) { // a bar for the mean step of each rank, as long as it takes
  if (!ranks.length) return [];
  const most = Math.max(...ranks.map(([, length]) => length)), colours = {};
  const bars = ranks.map(([name, length, parts]) => {
    const spans = [];
    let at = 0;
    for (const [phase, spent] of parts) {
      if (!(phase in colours)) colours[phase] = COLOURS[Object.keys(colours).length % COLOURS.length];
      spans.push([1000 * at / most, 1000 * spent / most, colours[phase], phase + ": " + short(spent) + " ms of a step, " + Math.round(100 * spent / length) + " %"]);
      at += spent;
    }
    return [name, short(length) + " ms", bar(spans)];
  });
  const chips = Object.entries(colours).map(([phase, colour]) => chip(colour, phase));
  const found = make("div", { class: "card", id: "steps" }, make("h2", {}, "Where the time of a step goes"), verdict ? make("b", {}, verdict) : null,
    make("div", { class: "legend" }, ...chips), make("table", { class: "steps" }, make("tbody", {}, ...bars.map(cells => make("tr", {}, ...cells.map(one => make("td", {}, one)))))));
  return [found];
}

function chip(colour, ...words) {
  const swatch = make("i", { class: "swatch" });
  swatch.style.background = colour;
  return make("span", {}, swatch, ...words);
}

function bar(spans) { // [left, width, colour, words] in thousandths of it
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("viewBox", "0 0 1000 24");
  for (const [left, width, colour, words] of spans) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x: left, width: Math.max(1, width), y: 0, height: 24, fill: colour })) rect.setAttribute(key, value);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = words;
    rect.append(title);
    svg.append(rect);
  }
  return svg;
}

function phases(list) {
  const known = list.filter(one => one.start && one.end > one.start || one.start && !one.end);
  if (!known.length) return null;
  const colours = {}, end = Math.max(...known.map(one => one.end || Date.now() / 1000)), start = known[0].start;
  const chips = [], spans = [];
  for (const one of known) {
    const name = one.name, stop = one.end || end;
    if (!(name in colours)) colours[name] = { Training: COLOURS[0], Interrupted: COLOURS[4], Failed: COLOURS[4] }[name] || COLOURS[(Object.keys(colours).length + 5) % 8];
    const left = 1000 * (one.start - start) / (end - start || 1), width = 1000 * (stop - one.start) / (end - start || 1);
    spans.push([left, width, colours[name], name + ": " + lasting(stop - one.start) + (one.said ? "\n" + one.said : "")]);
    chips.push(chip(colours[name], name + " ", make("b", {}, lasting(stop - one.start))));
  }
  return make("div", {}, make("div", { class: "phases" }, bar(spans)), make("div", { class: "legend" }, ...chips));
}

async function clone(path, act) {
  try {
    const { text } = await ask(path + "/clone");
    const box = make("dialog", {}, make("h2", {}, "The job file that repeats this run"), make("pre", { id: "job-file" }, text),
      make("p", { class: "soft" }, "The same as: trainshed clone RUN > job.yaml"));
    box.append(make("div", { class: "bar" }, button("Run it again", () => { box.close(); act("again", {}); }, "main"),
      button("Copy", () => navigator.clipboard && navigator.clipboard.writeText(text)), button("Close", () => box.close())));
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  } catch (error) { trouble(error); }
}

function confirmed(question, what, word, act) {
  const box = make("dialog", {}, make("h2", {}, question), make("p", { class: "soft" }, what));
  box.append(make("div", { class: "bar" }, button("Close", () => box.close()), button(word, () => { box.close(); act(); }, "danger")));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

async function openTicket(path, file) {
  const tab = file ? null : open("about:blank", "_blank");
  try {
    const { word } = await ask(path + "/ticket", { path: file });
    const name = encodeURIComponent(file ? file.split("/").pop() : "report.html");
    if (tab) { tab.opener = null; tab.location = "/ticket/" + word + "/" + name; return; }
    const link = make("a", { href: "/ticket/" + word + "/" + name, download: file ? file.split("/").pop() : null });
    link.click();
  } catch (error) { if (tab) tab.close(); trouble(error); }
}

function settings(body, told) {
  const checkpoints = told.checkpoints.map(one => [one.name, moment(one.changed)]);
  body.replaceChildren(make("div", { class: "two" },
    card("Hyperparameters", told.hyperparameters.length ? table(told.hyperparameters) : make("span", { class: "soft" }, "none")),
    make("div", {}, card("Environment", table(told.environment)), card("Checkpoints", checkpoints.length ? table(checkpoints) : make("span", { class: "soft" }, "none")))));
}

// --- logs: pieces of a file, before and after those that are shown ------------------------------------------------------

function logs(body, path, told) {
  const which = make("select", { id: "log", "aria-label": "log" }, ...told.logs.map(name => make("option", { value: name }, name)));
  const words = make("input", { type: "search", id: "search", placeholder: "search the whole log", "aria-label": "search" });
  const follow = make("input", { type: "checkbox", id: "follow" });
  follow.checked = true;
  const said = make("span", { class: "soft", id: "log-said" });
  const hits = make("div", { class: "hits", id: "hits" });
  const box = make("div", { class: "log", id: "lines", tabindex: "0" });
  const end = button("End", () => load(-1, true));
  const begin = button("Start", () => load(0, false));
  body.replaceChildren(card("", make("div", { class: "bar" }, which, words, make("label", { class: "box" }, follow, "follow"), begin, end, said), hits, box));
  let first = 0, last = 0, size = 0, busy = false, searching = 0;
  const MOST = 6000; // lines that are in the page

  if (!told.logs.length) { said.textContent = "nothing has been printed yet"; }

  function line([place, text]) {
    const made = make("div", { "data-place": place });
    made.textContent = text || " ";
    return made;
  }

  const get = (place, back) => ask(path + "/log?" + new URLSearchParams({ log: which.value, place, back: back ? "1" : "0" }));

  async function load(place, back) {
    if (!which.value) return;
    try {
      const piece = await get(place, back);
      first = piece.start; last = piece.end; size = piece.size;
      box.replaceChildren(...piece.lines.map(line));
      box.scrollTop = back ? box.scrollHeight : 0;
      tell();
    } catch (error) { trouble(error); }
  }

  function tell() { said.textContent = bytes(size) + (first > 0 || last < size ? ", shown from " + bytes(first) + " to " + bytes(last) : ""); }

  async function earlier() {
    if (first <= 0) return;
    const piece = await get(first, true);
    const before = box.scrollHeight;
    box.prepend(...piece.lines.map(line));
    box.scrollTop += box.scrollHeight - before;
    first = piece.start; size = piece.size;
    while (box.childElementCount > MOST) { last = Number(box.lastElementChild.dataset.place); box.lastElementChild.remove(); }
    tell();
  }

  async function later() {
    const piece = await get(last, false);
    size = piece.size;
    if (piece.size < last) { await load(-1, true); return false; } // it was written anew
    const at_end = box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
    box.append(...piece.lines.map(line));
    last = piece.end;
    while (box.childElementCount > MOST) { box.firstElementChild.remove(); first = Number(box.firstElementChild.dataset.place); }
    if (follow.checked && at_end) box.scrollTop = box.scrollHeight;
    tell();
    return piece.lines.length > 0 && piece.end < piece.size;
  }

  box.addEventListener("scroll", async () => {
    if (busy) return;
    busy = true;
    try {
      if (box.scrollTop < 200) await earlier();
      else if (last < size && box.scrollTop + box.clientHeight > box.scrollHeight - 200) await later();
    } catch (error) { trouble(error); }
    busy = false;
  });

  async function search() {
    const turn = ++searching, text = words.value, log = which.value, view = shown;
    hits.replaceChildren();
    if (!text || !log) return;
    let place = 0, found = 0;
    try {
      do {
        const told = await ask(path + "/search?" + new URLSearchParams({ log, text, place }));
        if (turn !== searching || view !== shown) return;
        for (const [at, words] of told.hits) {
          if (found++ >= 1000) break;
          const hit = button(words, async () => {
            follow.checked = false;
            await load(at, false);
            if (box.firstElementChild) box.firstElementChild.classList.add("hit");
          });
          hits.append(hit);
        }
        place = told.next;
        said.textContent = found + (found >= 1000 ? " or more lines" : found === 1 ? " line" : " lines") + " with it" + (told.done ? "" : ", " + Math.floor(100 * place / told.size) + " % searched");
        if (told.done || found >= 1000) return;
      } while (true);
    } catch (error) { trouble(error); }
  }

  words.addEventListener("keydown", event => { if (event.key === "Enter") search(); });
  words.addEventListener("search", search);
  which.addEventListener("change", () => { hits.replaceChildren(); words.value = ""; load(-1, true); });
  load(-1, true).then(() => repeat(async () => {
    if (!told.logs.length) {
      const news = await ask(path);
      if (news.logs.length) { logs(body, path, news); }
      return 1500;
    }
    if (follow.checked && !busy) { busy = true; try { while (await later()); } finally { busy = false; } }
    return 1500;
  }));
}

// --- files -------------------------------------------------------------------------------------------------------------

async function files(body, path, key) {
  let place = "";
  async function show(next) {
    try {
      const told = await ask(path + "/files?" + new URLSearchParams({ path: next }));
      place = next;
      const crumbs = [make("a", { href: "#/run/" + key + "/files" }, "run")];
      crumbs[0].addEventListener("click", event => { event.preventDefault(); show(""); });
      place.split("/").filter(Boolean).forEach((name, at, all) => {
        const link = make("a", { href: "#/run/" + key + "/files" }, name);
        link.addEventListener("click", event => { event.preventDefault(); show(all.slice(0, at + 1).join("/")); });
        crumbs.push(" / ", link);
      });
      const rows = told.entries.map(one => {
        const full = place ? place + "/" + one.name : one.name;
        let name = one.shown;
        if (one.name && (one.kind === "folder" || one.kind === "file")) {
          name = make("a", { href: "#/run/" + key + "/files" }, one.shown + (one.kind === "folder" ? "/" : ""));
          name.addEventListener("click", event => { event.preventDefault(); if (one.kind === "folder") show(full); else openTicket(path, full); });
        }
        return [name, one.kind === "link" ? "→ " + one.link : one.kind === "file" ? bytes(one.size) : "", moment(one.changed)];
      });
      body.replaceChildren(card("", make("div", { class: "bar" }, ...crumbs), table(rows, ["name", "size", "changed"]),
        told.more ? make("p", { class: "soft" }, told.more + " more") : null));
    } catch (error) { trouble(error); }
  }
  show("");
}

// --- several runs over one another --------------------------------------------------------------------------------------

function showOverlay(keys, query) {
  options.find = new URLSearchParams(query).get("find") || "";
  where("overlay");
  const names = make("div", { class: "legend", id: "overlaid" });
  const body = make("div");
  main.replaceChildren(card("Runs over one another", names), body);
  const charts = curves(body, "/api/overlay", () => true, { runs: keys });
  const read = charts.read.bind(charts);
  charts.read = async () => {
    const told = await read();
    names.replaceChildren(...told.runs.map(([key, name]) => make("span", {}, make("a", { href: "#/run/" + key }, name))));
    return told;
  };
}

// --- which view --------------------------------------------------------------------------------------------------------

function route() {
  shown++;
  const [path, query] = location.hash.split("?");
  const [, view, what, tab] = path.split("/");
  if (view === "run" && what) showRun(what, tab || "curves", query);
  else if (view === "overlay" && what) showOverlay(what.split(","), query);
  else { lookOf(query); keepLook(); showList(); }
}

addEventListener("hashchange", route);
route();
