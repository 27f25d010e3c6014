// The page over the runs. Texts of runs are only ever put into the page as text (`textContent`), never as markup.
"use strict";

const STATES = { Completed: "good", Failed: "bad", Lost: "bad", InProgress: "go", Stopping: "warn", Stopped: "warn" };
const ROW = 38; // pixels, as in style.css
const main = document.getElementById("main");

// --- the token: from the address, which then forgets it ---------------------------------------------------------------

const TOKEN = "trainshed-token" + location.pathname; // behind a proxy several pages may have one origin
const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
if (given) {
  localStorage.setItem(TOKEN, given[1]);
  history.replaceState(null, "", "#/");
}

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path, body) {
  path = path.replace(/^\//, ""); // below the page's own address, which a proxy may have moved
  if (window.trainshedCopy) return trainshedCopy(path, body);
  const headers = { Authorization: "Bearer " + (localStorage.getItem(TOKEN) || "") };
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

async function askOrSay(path, body) { // what keeps a page from being drawn stands in its place
  const view = shown;
  try { return await ask(path, body); } catch (error) {
    trouble(error);
    if (view === shown && error.status !== 401) put(card("", make("p", {}, error.message)));
    return null;
  }
}

function trouble(error) {
  document.getElementById("trouble").textContent = error ? error.message : "";
  if (error && error.status === 401 && !document.getElementById("token")) askForToken(error.message);
}

function askForToken(message) {
  const field = make("input", { id: "token", placeholder: "token", autocomplete: "off" });
  const enter = () => { localStorage.setItem(TOKEN, field.value.trim()); trouble(null); route(); };
  field.addEventListener("keydown", event => { if (event.key === "Enter") enter(); });
  put(make("div", { class: "card" }, make("h2", {}, "Who asks?"), make("p", {}, message),
    make("div", { class: "bar" }, field, button("Enter", enter, "main"))));
}

// --- elements ----------------------------------------------------------------------------------------------------------

function table(rows, head) {
  const body = rows.map(row => make("tr", {}, ...row.map(cell => make("td", {}, cell instanceof Node ? cell : String(cell)))));
  return make("table", {}, head ? make("thead", {}, make("tr", {}, ...head.map(one => make("th", {}, one)))) : null, make("tbody", {}, ...body));
}

const pill = state => make("span", { class: "state " + (STATES[state] || "warn") }, state);
const card = (title, ...inside) => make("div", { class: "card" }, title ? make("h2", {}, title) : null, ...inside);

// --- times and sizes as people read them -------------------------------------------------------------------------------

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
const look = { filter: "", state: "", sort: "-started", columns: "", group: "" }; // what the address holds

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

const called = name => name.replace(/^(metric|hp|tag)\.(?=.)/, "").replace(/^`(.*)`$/, "$1"); // the language quotes odd names

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
  const groups = make("select", { id: "group", "aria-label": "group by" });
  groups.addEventListener("change", () => { look.group = groups.value; keepLook(); list.scrollTop = 0; draw(); });
  const count = make("span", { class: "soft", id: "count", role: "status" });
  const wrong = make("span", { class: "bad", id: "wrong", role: "status" });
  const head = make("div", { class: "row head" }), space = make("div");
  const list = make("div", { class: "rows", id: "rows", tabindex: "0" }, space);
  put(make("h1", { class: "unseen" }, "Runs"), make("div", { class: "bar" }, words, states, columns, groups, overlay, count, wrong), make("div", { class: "card runs" }, head, list));
  let rows = [], fit = null, refused = "", asked = 0;

  function heads() {
    const sizes = runs.columns.map(([name, kind]) => name === "name" ? "minmax(180px, 2fr)" : kind === "tags" || kind === "text" && name !== "state" ? "minmax(90px, 1fr)" : "minmax(100px, .6fr)");
    list.parentElement.style.setProperty("--columns", "34px " + sizes.join(" "));
    list.parentElement.style.setProperty("--wide", 34 + 130 * runs.columns.length + "px");
    groups.replaceChildren(make("option", { value: "" }, "not grouped"), ...runs.columns.filter(([name]) => name !== "name").map(([name]) => make("option", { value: name }, "by " + called(name))));
    groups.value = runs.columns.some(([name]) => name === look.group) ? look.group : "";
    const all = make("input", { type: "checkbox", id: "all", "aria-label": "choose the first 100 that are shown" });
    all.addEventListener("change", () => { choose(rows.flatMap(row => row.members || [row]).slice(0, 100), all.checked); window_(); });
    keepingFocus(() => head.replaceChildren(all, ...runs.columns.map(([name]) => {
      const down = look.sort === "-" + name, mark = down ? " ▾" : look.sort === name ? " ▴" : "";
      const sorter = button(called(name) + mark, () => { look.sort = look.sort === name ? "-" + name : look.sort === "-" + name ? name : name === "started" ? "-" + name : name; keepLook(); heads(); draw(); });
      sorter.dataset.sort = name;
      sorter.id = "sort-" + name;
      return make("span", { title: name }, sorter);
    })));
  }

  function draw() {
    const by = look.sort.replace(/^-/, ""), down = look.sort !== by, at = runs.columns.findIndex(([name]) => name === by);
    rows = [...runs.rows.values()].filter(row => (!look.state || row.state === look.state) && (!fit || fit.has(row.key)));
    const groupedBy = runs.columns.findIndex(([name]) => name === look.group), fitting = rows.length;
    if (groupedBy >= 0) rows = groupsOf(rows, runs.columns, groupedBy);
    if (at >= 0) rows.sort((a, b) => { const x = a.values[at], y = b.values[at]; return x === null || y === null ? (x === null) - (y === null) : ordered(x, y) * (down ? -1 : 1); });
    count.textContent = (fitting === runs.rows.size ? fitting + " runs" : fitting + " of " + runs.rows.size + " runs") + (groupedBy >= 0 ? " in " + rows.length + (rows.length === 1 ? " group" : " groups") : "");
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
    keepingFocus(() => space.replaceChildren(...drawn));
  }

  function choose(some, on) {
    for (const row of some) if (on) chosen.add(row.key); else chosen.delete(row.key);
    marked();
  }

  function rowOf(row) { // of a run, or of a group of them
    const members = row.members || [row], box = make("input", { type: "checkbox", "aria-label": "choose " + (row.members ? "these " + members.length + " runs" : row.name) + " for an overlay" });
    box.checked = members.every(one => chosen.has(one.key));
    box.addEventListener("change", () => choose(members, box.checked));
    const told = (column, at) => row.members ? groupCell(row, column, at, value => column[0] === "state" ? pill(value) : cell({}, column, value)) : cell(row, column, row.values[at]);
    return make("div", { class: "row", "data-key": row.key, title: row.phase }, box, ...runs.columns.map(told));
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
    if (anew || news.rows.length || news.gone.length || !rows.length) { if (look.filter.trim()) await filter(); else draw(); }
  }

  let typing = 0;
  words.addEventListener("input", () => {
    look.filter = words.value; keepLook(); list.scrollTop = 0;
    clearTimeout(typing);
    typing = setTimeout(() => filter().catch(trouble), 150);
  });
  states.addEventListener("change", () => { look.state = states.value; keepLook(); list.scrollTop = 0; draw(); });
  list.addEventListener("scroll", window_);
  new ResizeObserver(window_).observe(list);
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
  const box = dialog("Columns", find, make("div", { class: "choices" }, ...parts));
  const kept = () => [...runs.columns.map(([name]) => name).filter(name => boxes.some(one => one.value === name && one.checked)), ...boxes.filter(one => one.checked && !on.has(one.value)).map(one => one.value)];
  box.append(make("div", { class: "bar" }, button("Show", () => { box.close(); take(kept().join(",")); }, "main"), button("The usual", () => { box.close(); take(""); }), button("Close", () => box.close())));
  box.showModal();
}

function dialog(title, ...inside) { // when it closes, who opened it is where they were, also where that was drawn anew
  const held = document.activeElement, box = make("dialog", { "aria-label": title }, make("h2", {}, title), ...inside);
  box.addEventListener("close", () => { box.remove(); focusAgain(held); });
  document.body.append(box);
  return box;
}

function where(text) {
  document.getElementById("where").textContent = text;
  document.title = (text ? text + " · " : "") + "trainshed";
}

// --- one run -----------------------------------------------------------------------------------------------------------

async function showRun(key, tab, query) {
  const path = "/api/runs/" + encodeURIComponent(key);
  const view = shown;
  let told = await askOrSay(path);
  if (!told || view !== shown) return;
  const top = make("div", { class: "card" });
  const tabs = make("nav", { class: "tabs", "aria-label": "parts of the run" });
  for (const name of ["curves", "media", "machine", "logs", "files", "lineage", "settings"]) tabs.append(make("a", { href: "#/run/" + key + "/" + name, class: name === tab ? "on" : null, "aria-current": name === tab ? "true" : null }, name));
  const fail = make("div");
  const body = make("div");
  const labels = new Labels(path, async () => { told = await ask(path); head(); });
  put(top, fail, labels.element, tabs, body);
  where(told.run.name + (tab === "curves" ? "" : " · " + tab));
  let failed = "";

  function head() {
    const run = told.run;
    const stop = button("Stop …", () => confirmed("Stop " + run.name + "?", "Its script may save; then its results are collected.", "Stop it", () => act("stop", {})), "danger"), resume = button("Resume …", () => confirmed("Resume " + run.name + "?", "It goes on from its checkpoints, with the same job.", "Resume it", () => act("resume", {})));
    stop.disabled = !told.can.stop; resume.disabled = !told.can.resume || told.busy;
    stop.id = "stop"; resume.id = "resume";
    if (run.state === "Completed") resume.title = "It has completed: clone it to run it again";
    const again = button("Clone …", () => clone(path, act));
    again.disabled = !told.can.clone; again.id = "clone";
    const remove = button("Remove …", () => confirmed("Remove " + run.name + "?", "Its folder and all that it left are deleted: results, logs, checkpoints. Nothing brings them back.", "Remove it", async () => { if (await act("remove", {})) location.hash = "#/runs"; }), "danger");
    remove.disabled = !told.can.remove; remove.id = "remove";
    const report = button("Report", () => openTicket(path, ""));
    report.id = "report";
    const facts = [["started", moment(run.started)], ["took", run.duration === null ? "" : lasting(run.duration)], ["hosts", run.hosts || ""], ["place", run.place], ["image", run.image || ""],
      ["attempts", told.attempts > 1 ? told.attempts : ""], ["folder", run.folder]];
    labels.take(run, told.can.label);
    keepingFocus(() => top.replaceChildren(
      make("div", { class: "bar" }, make("h1", {}, run.name), pill(run.state), make("span", { class: "soft" }, run.phase || ""),
        make("span", { class: "acts" }, resume, again, report, stop, remove), make("span", { class: "soft", id: "words" }, told.words.join(" · "))),
      phases(told.phases) || "",
      make("dl", { class: "facts" }, ...facts.filter(one => one[1] !== "").map(([name, text]) => make("div", { class: name === "folder" ? "long" : null }, make("dt", {}, name), make("dd", {}, String(text)))))));
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
      return true;
    } catch (error) { trouble(error); document.getElementById("words").textContent = error.message; return false; }
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
  else if (tab === "lineage") followPage(body, "lineage/" + key);
  else curves(body, path + "/charts", () => told.run.state === "InProgress", query);
}

function curves(body, path, going, query) {
  const charts = new Curves(asked => ask(path, asked), { look: lookAt(query), keep: look => keepQuery(queryOf(look)), trouble });
  body.replaceChildren(charts.element);
  repeat(async () => {
    const answer = await charts.read();
    return !answer.whole ? 50 : going() ? 1500 : 8000;
  });
}

function keepQuery(query) { // what is after the address of this view
  history.replaceState(null, "", location.hash.split("?")[0] + (query.size ? "?" + query : ""));
}

// --- where a step's time goes, and the machines ------------------------------------------------------------------------

function machine(body, path, going) {
  const charts = new Curves(asked => ask(path, asked), { plain: true, trouble }), steps = make("div");
  body.replaceChildren(steps, charts.element);
  repeat(async () => {
    const answer = await charts.read();
    steps.replaceChildren(...meanSteps(answer.verdict, answer.steps));
    return !answer.whole ? 200 : going() ? 3000 : 8000;
  });
}

function meanSteps(verdict, ranks) { // a bar for the mean step of each rank, as long as it takes
  if (!ranks.length) return [];
  const names = [...new Set(ranks.flatMap(([, , parts]) => parts.map(([phase]) => phase)))];
  const rows = ranks.map(([name, length, parts]) => {
    let at = 0;
    return { name, spans: parts.map(([phase, spent]) => [at, at += spent, paint(names.indexOf(phase)), Math.round(100 * spent / length) + " %", phase + ": " + short(spent) + " ms of a step"]) };
  });
  return [make("div", { class: "card", id: "steps" }, make("h2", {}, "Where the time of a step goes"), verdict ? make("b", {}, verdict) : null,
    hues(names.map((name, at) => [paint(at), name])), figure({ kind: "bars", rows, unit: " ms", title: "milliseconds of a step" }).element)];
}

function hues(entries) { // what the colours of bars mean: [class, name, more]
  return make("div", { class: "legend" }, ...entries.map(([hue, name, more]) => make("span", { class: "chip" }, make("i", { class: hue }), name, more ? make("b", {}, more) : null)));
}

function phases(list) {
  const known = list.filter(one => one.start && (!one.end || one.end > one.start));
  if (!known.length) return null;
  const start = known[0].start, now = Math.max(...known.map(one => one.end || Date.now() / 1000)), names = [...new Set(known.map(one => one.name))];
  const hue = name => ({ Training: "k0", Interrupted: "k4", Failed: "k4" }[name] || paint(5 + names.indexOf(name)));
  const spans = known.map(one => [one.start - start, (one.end || now) - start, hue(one.name), one.name, one.name + ": " + lasting((one.end || now) - one.start) + (one.said ? ", " + one.said : "")]);
  const spent = name => known.filter(one => one.name === name).reduce((sum, one) => sum + (one.end || now) - one.start, 0);
  return make("div", {}, figure({ kind: "bars", rows: [{ name: "phases", spans }], seconds: true, title: "phases" }).element, hues(names.map(name => [hue(name), name, lasting(spent(name))])));
}

async function clone(path, act) {
  try {
    const { text } = await ask(path + "/clone");
    const box = dialog("The job file that repeats this run", make("pre", { id: "job-file", tabindex: 0, "aria-label": "job file" }, text),
      make("p", { class: "soft" }, "The same as: trainshed clone RUN > job.yaml"));
    box.append(make("div", { class: "bar" }, button("Run it again", () => { box.close(); act("again", {}); }, "main"),
      button("Copy", () => navigator.clipboard && navigator.clipboard.writeText(text)), button("Close", () => box.close())));
    box.showModal();
  } catch (error) { trouble(error); }
}

function confirmed(question, what, word, act) {
  const box = dialog(question, make("p", { class: "soft" }, what));
  box.append(make("div", { class: "bar" }, button("Close", () => box.close()), button(word, () => { box.close(); act(); }, "danger")));
  box.showModal();
}

async function openTicket(path, file) {
  const tab = file ? null : open("about:blank", "_blank");
  try {
    const { word } = await ask(path + "/ticket", { path: file });
    const name = encodeURIComponent(file ? file.split("/").pop() : "report.html");
    if (tab) { tab.opener = null; tab.location = new URL("ticket/" + word + "/" + name, location.href.split("#")[0]).href; return; }
    const link = make("a", { href: "ticket/" + word + "/" + name, download: file ? file.split("/").pop() : null });
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
      const inside = body.contains(document.activeElement);
      body.replaceChildren(card("", make("div", { class: "bar" }, ...crumbs), table(rows, ["name", "size", "changed"]),
        told.more ? make("p", { class: "soft" }, told.more + " more") : null));
      if (inside) crumbs[crumbs.length - 1].focus();
    } catch (error) { trouble(error); }
  }
  show("");
}

// --- several runs over one another --------------------------------------------------------------------------------------

async function showOverlay(runs, query) {
  where("overlay");
  const view = shown, told = await askOrSay("/api/together", { runs });
  if (!told || view !== shown) return;
  if (!told.runs.length) { put(card("", make("p", {}, "these runs are not here (any more)"))); return; }
  const many = new Many(told, asked => ask("/api/overlay", { ...asked, runs }), { query, keep: keepQuery, trouble, link: key => "#/run/" + key });
  put(many.element);
  repeat(async () => (await many.read()) || 3000);
}

// --- which view --------------------------------------------------------------------------------------------------------

function route() {
  shown++;
  const [path, query] = location.hash.split("?");
  const [, view, what, tab] = path.split("/");
  markPage(view);
  if (view === "run" && what) showRun(what, tab || "curves", query);
  else if (view === "overlay" && what) showOverlay(what.split(","), query);
  else if (view in PAGES && view !== "runs") showPage(view, what);
  else { lookOf(query); keepLook(); showList(); }
}

addEventListener("hashchange", route);
route();
