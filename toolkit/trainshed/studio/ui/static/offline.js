// A copy of the page without a server: what the page asks for comes from scripts beside it.
"use strict";

const trainshedHeld = {}, trainshedLoading = {};

function trainshedTake(told) { Object.assign(trainshedHeld, told); }

function trainshedLoad(name) { // each once
  return trainshedLoading[name] ||= new Promise(done => {
    const script = document.createElement("script");
    script.src = "data/" + name + ".js";
    script.addEventListener("load", () => done(true));
    script.addEventListener("error", () => done(false));
    document.head.append(script);
  });
}

async function trainshedCopy(path, body) {
  const [place, query] = path.split("?"), address = decodeURIComponent(place), asked = new URLSearchParams(query);
  const run = /^api\/(?:runs|page\/lineage)\/([0-9a-f]+)/.exec(address);
  await trainshedLoad(run ? "run-" + run[1] : address.startsWith("api/page/") ? "pages" : "runs");
  if (address === "api/runs") return trainshedRuns(asked);
  if (address === "api/filter") return trainshedFilter(body.text);
  if (address === "api/overlay") return trainshedOverlay(body);
  if (address === "api/together") return trainshedTogether(body.runs);
  if (address.endsWith("/log")) return trainshedLog(trainshedHeld[address + "?" + asked.get("log")], asked);
  if (address.endsWith("/medium")) return structuredClone(trainshedHeld[address + "?" + asked.get("file")]);
  if (address.endsWith("/ticket") && body.path) throw new Refused(404, "files are not in this copy");
  const told = trainshedHeld[address];
  if (!told) throw new Refused(404, "this is not in the copy");
  return structuredClone(told.charts ? { ...told, charts: askedFor(told.charts, body) } : told);
}

function trainshedRuns(asked) { // the columns that are wanted, of those that are there
  const told = trainshedHeld["api/runs"], all = told.columns.map(([name]) => name);
  const names = (asked.get("columns") || "").split(",").filter(name => all.includes(name));
  const places = (names.length ? names : trainshedHeld.usual).map(name => all.indexOf(name));
  const had = places.join();
  const rows = asked.get("had") === had ? [] : told.rows.map(row => ({ ...row, values: places.map(at => row.values[at]) }));
  return { version: 1, had, columns: places.map(at => told.columns[at]), rows, gone: [], problem: "" };
}

function trainshedFilter(text) {
  if (/[=<>~()]|\b(?:in|is|like)\b/.test(text)) return { problem: "filter: a copy without a server takes words only" };
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = row => { const all = JSON.stringify([row.name, row.state, row.phase, row.values]).toLowerCase(); return words.every(word => all.includes(word)); };
  return { keys: trainshedHeld["api/runs"].rows.filter(fits).map(row => row.key) };
}

function trainshedTogether(keys) { // of the runs that were told of together
  const told = trainshedHeld["api/together"], all = told ? told.runs.map(run => run.key) : [];
  const places = keys.map(key => all.indexOf(key)).filter(at => at >= 0), held = values => places.map(at => values[at]);
  const columns = named => Object.fromEntries(Object.entries(named).map(([name, values]) => [name, held(values)]));
  if (!places.length) throw new Refused(404, "this is not in the copy");
  const whole = places.length === all.length;
  return {
    ...told, runs: held(told.runs), columns: columns(told.columns), metrics: columns(told.metrics),
    differs: told.differs.map(([section, name, values]) => [section, name, held(values)]),
    importance: whole ? told.importance : {}, why: whole ? told.why : "a copy without a server knows it of all its runs alone",
  };
}

async function trainshedOverlay(body) { // each metric by itself, a line for each run
  const charts = new Map(), runs = [];
  for (const key of body.runs) {
    if (!await trainshedLoad("run-" + key)) continue;
    const name = trainshedHeld["api/runs/" + key].run.name, held = trainshedHeld["api/runs/" + key + "/charts"];
    const shown = runs.some(([, other]) => other === name) ? name + " (" + key.slice(0, 6) + ")" : name;
    runs.push([key, shown]);
    for (const chart of held.charts) for (const line of chart.lines) {
      if (!charts.has(line.name)) charts.set(line.name, { ...chart, title: line.name, lines: [], count: 0, once: [], events: [] });
      const made = charts.get(line.name);
      made.lines.push({ ...line, name: shown });
      made.count += line.count;
    }
  }
  return structuredClone({ titles: [...charts.keys()], charts: askedFor([...charts.values()], body), whole: true, runs });
}

function trainshedLog(held, asked) { // the end of it is there
  if (!held) throw new Refused(404, "this run has no such log");
  const place = Number(asked.get("place")), all = structuredClone(held);
  if (place < 0 || asked.get("back") !== "1" && place <= all.start) return all;
  const at = asked.get("back") === "1" ? all.start : all.end;
  return { ...all, lines: [], start: at, end: at };
}
