// Further pages (tunings, pipelines, models, lineage, data, storage), and tags and notes of a run.
// What a page is made of comes from the server (views/parts.py); each kind of part is drawn in one way.
"use strict";

const PAGES = { runs: "Runs", tunings: "Tunings", pipelines: "Pipelines", models: "Models", data: "Data", storage: "Storage" };

function markPage(view) { // in the head of the page, which is the same on all
  const pages = document.getElementById("pages"), own = view in PAGES ? view : "runs";
  if (!pages.childElementCount) pages.append(...Object.entries(PAGES).map(([name, title]) => make("a", { href: "#/" + name }, title)));
  for (const link of pages.children) if (link.hash === "#/" + own) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
}

function keepingFocus(act) { // what is drawn anew while a person is in it stays where they are; where it is gone, they are at the page's begin
  const held = document.activeElement;
  act();
  if (held && held !== document.body && !held.isConnected) focusAgain(held);
}

function focusAgain(held) { // at what stands in its place now
  const { id } = held, [href, label] = ["href", "aria-label"].map(name => held.getAttribute(name));
  const again = id ? document.getElementById(id) : [...main.querySelectorAll("a, button, input, [tabindex]")].find(one =>
    href ? one.getAttribute("href") === href : label && one.getAttribute("aria-label") === label);
  if (again) again.focus();
  if (!again || document.activeElement !== again) main.focus({ preventScroll: true });
}

const put = (...parts) => keepingFocus(() => main.replaceChildren(...parts));

function showPage(kind, key) {
  where(PAGES[kind]);
  const head = make("div", {}, make("h1", { class: "page" }, PAGES[kind])), body = make("div");
  put(head, body);
  followPage(body, kind + (key ? "/" + encodeURIComponent(key) : ""), told => keepingFocus(() => head.replaceChildren(...pageHead(kind, key, told))));
}

function followPage(body, address, take) { // parts that have changed are drawn anew
  const path = "api/page/" + address, view = shown, drawn = [];
  repeat(async () => {
    let told;
    try { told = await ask(path); } catch (error) {
      if (error.status === 404 && view === shown) { body.replaceChildren(card("", make("p", {}, error.message))); return 8000; }
      throw error;
    }
    if (view !== shown) return 8000;
    if (take) take(told);
    keepingFocus(() => told.parts.forEach((part, at) => {
      const text = JSON.stringify(part);
      if (drawn[at] && drawn[at].text === text) return;
      const element = partOf(part, () => told.live);
      if (drawn[at]) drawn[at].element.replaceWith(element); else body.append(element);
      drawn[at] = { text, element };
    }));
    for (const gone of drawn.splice(told.parts.length)) gone.element.remove();
    return told.live ? 3000 : 8000;
  });
}

function pageHead(kind, key, told) {
  where(key ? told.title + " · " + PAGES[kind] : told.title);
  if (!key) return [make("h1", { class: "page" }, told.title), told.facts.length ? card("", factsOf(told.facts)) : ""];
  const words = make("span", { class: "soft", id: "words", role: "status" }, (document.getElementById("words") || {}).textContent || "");
  const stop = button("Stop …", () => confirmed("Stop " + told.title + "?", told.stop, "Stop it", async () => {
    try { words.textContent = (await ask("api/page/" + kind + "/" + encodeURIComponent(key) + "/stop", {})).said; } catch (error) { trouble(error); }
  }), "danger");
  stop.id = "stop";
  const up = told.up && make("a", { href: "#/" + told.up }, told.up.includes("/") ? told.up.split("/").pop() : PAGES[told.up]);
  return [card("", make("div", { class: "bar" }, up, up ? make("span", { class: "soft" }, "/") : null, make("h1", {}, told.title), told.state ? pill(told.state) : null,
    told.can && told.can.stop ? make("span", { class: "acts" }, stop) : null, words), factsOf(told.facts))];
}

const factsOf = facts => make("dl", { class: "facts" }, ...facts.map(([name, value]) =>
  make("div", { class: String(value).length > 40 ? "long" : null }, make("dt", {}, name), make("dd", {}, cellOf(value)))));

function cellOf(value) {
  if (value === null || typeof value !== "object") return typeof value === "number" ? short(value) : value;
  if (value.state !== undefined) return pill(value.state);
  if (value.time !== undefined) return make("span", { title: moment(value.time) }, value.time > Date.now() / 1000 ? "in " + lasting(value.time - Date.now() / 1000) : ago(value.time));
  return make("a", { href: value.link }, value.text);
}

const PARTS = {
  table(part) {
    if (!part.rows.length) return card(part.title, make("p", { class: "soft" }, part.empty));
    const made = table(part.rows.map(row => row.map(cellOf)), part.head);
    return card(part.title, scrolling(part.title || "table", made), part.more ? make("p", { class: "soft" }, part.more + " more") : null);
  },
  bars(part) { return card(part.title, make("p", { class: "soft" }, part.note), figure({ kind: "ranked", rows: part.rows }).element); },
  text(part) { return card(part.title, make("pre", { tabindex: "0", "aria-label": part.title }, part.text)); },
  charts(part, going) {
    const body = make("div");
    curves(body, part.path, going);
    return make("section", { class: "drawn" }, make("h2", {}, part.title), body);
  },
  graph(part) { return card(part.title, scrolling(part.title, graphOf(part))); },
};

const partOf = (part, going) => PARTS[part.kind](part, going);

const scrolling = (title, inside) => make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": title }, inside);

function graphOf({ boxes, edges }) { // each box right of all that lead to it; circles end where they began
  const level = new Map(boxes.map(one => [one.id, 0]));
  for (let turn = 0, moved = true; moved && turn < boxes.length; turn++) {
    moved = false;
    for (const [from, to] of edges) if (level.get(to) <= level.get(from) && from !== to) { level.set(to, level.get(from) + 1); moved = true; }
  }
  const columns = [...new Set(level.values())].sort((a, b) => a - b).map(() => make("div", { class: "column" }));
  const order = [...new Set(level.values())].sort((a, b) => a - b), drawn = new Map();
  for (const one of boxes) {
    const lines = one.lines.map(line => make("span", { class: "soft" }, line));
    const element = make(one.link ? "a" : "div", { class: "node " + (STATES[one.state] || "") + (one.marked ? " marked" : ""), href: one.link || null, title: one.lines.join("\n") }, make("b", {}, one.title), ...lines);
    drawn.set(one.id, element);
    columns[order.indexOf(level.get(one.id))].append(element);
  }
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const graph = make("div", { class: "graph" }, svg, ...columns);
  const join = () => joined(graph, svg, edges.map(([from, to, what]) => [drawn.get(from), drawn.get(to), what]));
  new ResizeObserver(join).observe(graph);
  return graph;
}

function joined(graph, svg, edges) {
  const origin = graph.getBoundingClientRect(), parts = [];
  for (const [key, value] of Object.entries({ width: graph.scrollWidth, height: graph.scrollHeight })) svg.setAttribute(key, value);
  for (const [from, to, what] of edges) {
    const a = from.getBoundingClientRect(), b = to.getBoundingClientRect();
    const x1 = a.right - origin.left, y1 = a.top + a.height / 2 - origin.top, x2 = b.left - origin.left, y2 = b.top + b.height / 2 - origin.top;
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path"), half = (x1 + x2) / 2;
    path.setAttribute("d", "M" + x1 + " " + y1 + "C" + half + " " + y1 + " " + half + " " + y2 + " " + x2 + " " + y2);
    parts.push(path);
    if (!what) continue;
    const words = document.createElementNS("http://www.w3.org/2000/svg", "text");
    for (const [key, value] of Object.entries({ x: x2 - 5, y: y2 - 5, "text-anchor": "end" })) words.setAttribute(key, value);
    words.textContent = what;
    parts.push(words);
  }
  svg.replaceChildren(...parts);
}

// --- tags and notes, edited where they stand -------------------------------------------------------------------------------

class Labels {
  constructor(path, reread) { this.path = path; this.reread = reread; this.element = make("div", { class: "card labels", id: "labels" }); }

  take(run, may) {
    const text = JSON.stringify([run.tags, run.notes, may]);
    if (text === this.text || [...this.element.querySelectorAll("input")].some(field => field.value)) return; // somebody is writing
    this.text = text;
    const tags = Object.entries(run.tags).map(([name, value]) => make("span", { class: "tag" }, value ? name + "=" + value : name,
      may ? this.button("×", "take the tag " + name + " away", { words: ["-" + name] }) : null));
    const notes = run.notes.map(([at, note]) => make("p", {}, make("span", { class: "soft" }, at + "  "), note));
    keepingFocus(() => this.element.replaceChildren(
      make("div", { class: "bar" }, make("h2", {}, "Tags"), ...tags, may ? this.field("new-tag", "tag or tag=value", text => ({ words: ["+" + text] })) : null),
      make("div", { class: "bar" }, make("h2", {}, "Notes"), may ? this.field("new-note", "a note", text => ({ note: text })) : null), ...notes));
  }

  button(text, label, body) {
    const made = button(text, () => this.send(body), "small");
    made.setAttribute("aria-label", label);
    return made;
  }

  field(id, words, body) {
    const made = make("input", { id, placeholder: words + ", then Enter", "aria-label": words, autocomplete: "off" });
    made.addEventListener("keydown", async event => {
      const text = made.value.trim();
      if (event.key !== "Enter" || !text) return;
      made.value = "";
      if (!await this.send(body(text)) && !made.value) made.value = text;
    });
    return made;
  }

  async send(body) {
    try { await ask(this.path + "/labels", body); trouble(null); await this.reread(); return true; } catch (error) { trouble(error); return false; }
  }
}
