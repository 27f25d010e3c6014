// The one engine of all charts: the page's, and those of the files that we write (pages/engine.py says why it is in this language).
//
//   figure(spec, look, acts) -> { element, draw(spec, look) }    a chart that is drawn for the width it has, again when that changes
//
// spec, a value of JSON; `kind` says which row of DRAW draws it, `title` stands above:
//   lines     axis, lines: [{name, x, y, mean?, odd, last, more?, colour?, mode?}], once?, events?: [[x, kind, words]], least?, most?, note?
//             y is null where the line breaks; odd: [[x, "NaN", count]]; mean: of all values for which a thinned point stands
//             mode: "bar" or "markers" for what is not a line; names?: of the places 0, 1, ... across; plain?: neither smoothed nor logarithmic
//   bars      rows: [{name, spans: [[start, end, colour, within, words]], marks: [[x, words]]}], unit?, seconds?
//   points    across, up (names), points: [[x, y, colour, words, key?]], line?: [[x, y]], logs?: of both axes; x may be a text
//   parallel  axes: [{name, down?, logs?}], rows: [{name, values, colour, weak?}]; a value is a number, a text or null
//             logs: whether an axis is logarithmic; where it is not said, the values decide
//   ranked    rows: [[name, share]]
// look, of lines: {log, logx, smooth: 0 to 10, hidden: set of names, group: line's name -> group's name, null for all lines}
// acts, of lines: {zoom(low, high), whole(), toggle(name)}: what somebody else does; without them it is done here
//
// Texts of runs are only ever put into the page as text, never as markup.
"use strict";

const charts = (() => {

const COLOURS = 25, DASHES = [null, "7 3", "2 3", "9 3 2 3"];
const paint = number => "k" + number % COLOURS;
const dash = number => DASHES[Math.floor(number / 9) % DASHES.length];

// --- elements ----------------------------------------------------------------------------------------------------------

function fill(element, attributes, inside) {
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== false && value !== undefined) element.setAttribute(key, value);
  element.append(...inside.filter(one => one !== null && one !== undefined));
  return element;
}

const make = (name, attributes, ...inside) => fill(document.createElement(name), attributes, inside);
const shape = (name, attributes, ...inside) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, inside);
const told = (element, words) => { if (words) element.append(shape("title", {}, words)); return element; };
const label = (x, y, words, anchor, kind) => shape("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor, class: kind }, words);

function button(text, act, kind) {
  const made = make("button", { type: "button", class: kind || null }, text);
  made.addEventListener("click", act);
  return made;
}

function sample(number) { // of a line, for a legend
  return shape("svg", { class: "sample " + paint(number), viewBox: "0 0 20 8", "aria-hidden": "true" }, shape("path", { class: "ln", d: "M0,4H20", "stroke-dasharray": dash(number) }));
}

// --- numbers as people read them ---------------------------------------------------------------------------------------

function short(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size && (size >= 1e6 || size < 1e-4)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function lasting(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return Math.round(seconds) + " s";
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? minutes + " min " + String(Math.floor(seconds % 60)).padStart(2, "0") + " s"
    : minutes < 2880 ? Math.floor(minutes / 60) + " h " + String(minutes % 60).padStart(2, "0") + " min" : Math.floor(minutes / 1440) + " d";
}

function clock(seconds, step) { // a mark of an axis: 45 s, 2:30, 3 h
  const whole = Math.round(seconds), two = value => String(value).padStart(2, "0");
  if (step < 1) return short(Number(seconds.toPrecision(6))) + " s";
  if (!whole) return "0";
  if (step >= 86400) return Math.round(whole / 86400) + " d";
  if (whole >= 3600) return Math.floor(whole / 3600) + (step >= 3600 ? " h" : ":" + two(Math.floor(whole % 3600 / 60)) + (step < 60 ? ":" + two(whole % 60) : " h"));
  return whole >= 60 ? Math.floor(whole / 60) + (step >= 60 ? " min" : ":" + two(whole % 60)) : whole + " s";
}

function marked(mark, step) { // with as many digits as tell two marks apart
  const size = Math.abs(mark);
  if (!size) return "0";
  if (size >= 1e6 || size < 1e-4 && step < 1e-4) return Number(mark.toPrecision(4)).toExponential().replace("e+", "e");
  return String(Number(mark.toFixed(Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step)))))));
}

// --- axes --------------------------------------------------------------------------------------------------------------

const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function roundStep(wanted) {
  if (!(wanted > 0 && wanted < Infinity)) return 1;
  const base = 10 ** Math.floor(Math.log10(wanted));
  return base ? [1, 2, 2.5, 5, 10].find(factor => factor * base >= wanted * .999) * base : wanted;
}

// From numbers to places between two pixels. kind: "linear", "log", "clock" (seconds); about: how many marks; tight: it ends where the numbers do.
function axis(low, high, start, end, kind = "linear", about = 5, tight = false) {
  if (kind === "log") return logAxis(low, high, start, end);
  if (!(high / 2 - low / 2 > Math.abs(high) * 1e-12)) { const margin = Math.abs(low) * .1 || 1; low -= margin; high += margin; }
  const wanted = high / about - low / about;
  const step = kind === "clock" && wanted >= 1 ? CLOCK.find(one => one >= wanted) || 86400 * Math.ceil(wanted / 86400) : roundStep(wanted);
  const first = Math.floor(low / step), last = Math.ceil(high / step);
  if (!tight) { low = first * step; high = last * step; }
  const marks = [];
  for (let number = first; number <= last && marks.length < 40; number++) {
    const mark = number * step;
    if (mark >= low - step * 1e-9 && mark <= high + step * 1e-9) marks.push([mark, kind === "clock" ? clock(mark, step) : marked(mark, step)]);
  }
  const half = high / 2 - low / 2; // halved: the span of two huge numbers of different sign is not finite
  return { low, high, marks, place: value => start + (value / 2 - low / 2) / half * (end - start), value: place => low + (place - start) / (end - start) * half * 2 };
}

function logAxis(low, high, start, end) {
  if (high / low < 1.2) { low /= 1.1; high *= 1.1; }
  const from = Math.log10(low), span = Math.log10(high) - from, first = Math.floor(from), last = Math.ceil(from + span);
  const every = Math.max(1, Math.ceil(span / 5)), factors = span > 2.5 ? [1] : span > .8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  let marks = [];
  for (let power = first; power <= last; power++) if (power % every === 0) for (const factor of factors) marks.push(factor * 10 ** power);
  marks = marks.filter(mark => mark >= low * (1 - 1e-9) && mark <= high * (1 + 1e-9)).map(mark => [mark, short(mark)]);
  if (marks.length < 2) marks = axis(low, high, start, end, "linear", 4, true).marks;
  return { low, high, marks, place: value => start + (Math.log10(value) - from) / span * (end - start), value: place => 10 ** (from + (place - start) / (end - start) * span) };
}

function textAxis(texts, start, end) { // one place for each text
  const places = new Map(texts.map((text, at) => [text, start + (at + .5) / texts.length * (end - start)]));
  const every = Math.ceil(texts.length / 12);
  return { marks: texts.filter((_, at) => at % every === 0).map(text => [text, text]), place: text => places.get(text) };
}

function valueAxis(values, start, end, about, logs) { // of numbers, or of texts where any value is one
  if (values.some(value => typeof value === "string")) {
    const texts = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true })), scale = textAxis(texts, start, end);
    return { ...scale, place: value => scale.place(String(value)) };
  }
  const low = extreme(values, Math.min), high = extreme(values, Math.max);
  return axis(low, high, start, end, low > 0 && (logs ?? high / low > 50) ? "log" : "linear", about);
}

const extreme = (values, of) => values.reduce((a, b) => of(a, b), of === Math.min ? Infinity : -Infinity);

function frame(across, up, left, right, top, bottom, title) { // the axes and their words
  const grid = up.marks.map(([mark]) => "M" + left + "," + up.place(mark).toFixed(1) + "H" + right).join("");
  return shape("g", {}, shape("path", { class: "grd", d: grid }), shape("path", { class: "axis", d: "M" + left + "," + bottom + "H" + right }),
    ...up.marks.map(([mark, words]) => label(left - 6, up.place(mark) + 4, cut(words, 9), "end")),
    ...across.marks.map(([mark, words]) => { const x = across.place(mark), end = x > right - 14; return label(Math.min(x + (end ? 4 : 0), right), bottom + 16, cut(words, 12), end ? "end" : "middle"); }),
    label((left + right) / 2, bottom + 30, title, "middle"));
}

const cut = (words, most) => words.length > most ? words.slice(0, most - 1) + "…" : words;

// --- lines -------------------------------------------------------------------------------------------------------------

function smoothed(values, level) { // of what came before and what comes after, so that it lags behind nothing; as pages/thin.py has it
  const keep = Math.exp(-1 / Math.max(2, values.length * level / 180));
  const real = value => value !== null && value !== undefined;
  function pass(list) {
    let mean = 0, weight = 0;
    return list.map(value => {
      if (!real(value)) return null;
      mean = keep * mean + (1 - keep) * value;
      weight = keep * weight + 1 - keep;
      return mean / weight;
    });
  }
  const back = pass(values.slice().reverse()).reverse();
  return pass(values).map((value, at) => value === null ? null : value / 2 + back[at] / 2);
}

function found(sorted, wanted) { // the first place at which a sorted list has this or more
  let low = 0, high = sorted.length;
  while (low < high) { const middle = low + high >> 1; if (sorted[middle] < wanted) low = middle + 1; else high = middle; }
  return low;
}

function between(line, x) { // the line's height at a place, null outside of it
  const at = found(line.x, x);
  if (at >= line.x.length || at === 0 && line.x[0] !== x) return null;
  if (line.x[at] === x || line.y[at - 1] === null || line.y[at] === null) return line.y[at];
  const part = (x - line.x[at - 1]) / (line.x[at] - line.x[at - 1]);
  return line.y[at - 1] * (1 - part) + line.y[at] * part;
}

const GRID = 160; // places at which groups are summed up

// The groups of lines: the mean of each, and one standard deviation around it where it has two lines or more.
function grouped(lines, group, logx) {
  const members = new Map();
  for (const line of lines) { const name = group(line.name); members.set(name, [...(members.get(name) || []), line]); }
  return [...members].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([name, held], number) => {
    const all = held.map(line => ({ x: line.x, y: line.mean || line.y })), xs = [...new Set(all.flatMap(line => line.x))].sort((a, b) => a - b);
    const x = xs.length <= GRID ? xs : spread(xs[0], xs[xs.length - 1], logx), y = [], low = [], high = [];
    for (const place of x) {
      const values = all.map(line => between(line, place)).filter(value => value !== null && value !== undefined);
      const mean = values.length ? values.reduce((a, b) => a + b / values.length, 0) : null;
      const off = values.length > 1 ? Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1)) : 0;
      y.push(mean); low.push(mean === null ? null : mean - off); high.push(mean === null ? null : mean + off);
    }
    const last = y.filter(value => value !== null).pop();
    return { name: name + " (" + held.length + (held.length === 1 ? " run)" : " runs)"), x, y, low, high, odd: [], last: last === undefined ? "" : last, colour: number, sum: true };
  });
}

function spread(low, high, log) {
  const part = at => at / (GRID - 1);
  return Array.from({ length: GRID }, (_, at) => at === GRID - 1 ? high : log && low > 0 ? low * (high / low) ** part(at) : low + (high - low) * part(at));
}

function trace(x, y, across, up, log, logx) { // the line as a path, and points that stand alone between breaks
  let path = "", run = [];
  const alone = [];
  const end = () => { if (run.length > 1) path += "M" + run.join("L"); else if (run.length) alone.push(run[0]); run = []; };
  for (let at = 0; at < x.length; at++) {
    if (y[at] === null || y[at] === undefined || log && y[at] <= 0 || logx && x[at] <= 0) end();
    else run.push(across.place(x[at]).toFixed(1) + "," + up.place(y[at]).toFixed(1));
  }
  end();
  return [path, alone];
}

function drawLines(spec, look, width, own) {
  const left = 54, right = width - 12, top = 16, height = 230, bottom = height - 34;
  const shown = own.lines.filter(line => !own.hidden.has(line.name)), log = look.log && !spec.plain, seconds = spec.axis === "time";
  const bars = shown.filter(line => line.mode === "bar"), wide = widest(bars.flatMap(line => line.x)), part = .92 / bars.length;
  const xs = own.range || ends(shown.map(line => line.x), look.logx).map((end, at) => bars.length ? end + (at - .5) * wide : end), inside = own.range ? shown.map(line => within(line, own.range)) : shown;
  const ys = ends(inside.flatMap(line => line.sum ? [line.low, line.high] : [line.y]), log);
  const kind = seconds ? "clock" : "linear", logx = look.logx && xs[0] > 0;
  const across = xs[0] <= xs[1] ? axis(xs[0], xs[1], left, right, logx ? "log" : kind, Math.max(3, width / 90), xs[1] > xs[0]) : axis(0, 1, left, right);
  if (spec.names) across.marks = spec.names.map((name, at) => [at, name]).filter(([at]) => at >= across.low && at <= across.high && at % Math.ceil(spec.names.length * 90 / width) === 0);
  if (spec.least !== undefined && spec.least !== null) ys[0] = Math.min(ys[0], spec.least);
  if (spec.most !== undefined && spec.most !== null) ys[1] = Math.max(ys[1], spec.most);
  const empty = !(ys[0] <= ys[1]), up = empty ? axis(0, 1, bottom, top) : axis(ys[0], ys[1], bottom, top, log ? "log" : "linear");
  const parts = shape("svg", { x: left - 3, y: 0, width: right - left + 6, height: bottom + 3, viewBox: [left - 3, 0, right - left + 6, bottom + 3].join(" ") }); // which cuts what is beyond it
  for (const line of shown) {
    const hue = paint(line.colour), level = line.sum ? 0 : spec.plain || line.y.length < 50 ? 0 : look.smooth || 0;
    if (line.sum && line.low.some((low, at) => low !== line.high[at])) parts.append(shape("path", { class: "band " + hue, d: band(line, across, up, log, logx) }));
    if (line.mode === "bar") {
      const edge = x => across.place(x + wide * part * (bars.indexOf(line) - bars.length / 2)).toFixed(1), shapes = line.x.map((x, at) => line.y[at] === null ? "" : "M" + edge(x) + "," + up.place(0).toFixed(1) + "V" + up.place(line.y[at]).toFixed(1) + "H" + edge(x + wide * part) + "V" + up.place(0).toFixed(1) + "Z");
      parts.append(shape("path", { class: "f " + hue, d: shapes.join("") }));
      continue;
    }
    const points = line.mode === "markers", [path, alone] = points ? ["", []] : trace(line.x, line.y, across, up, log, logx);
    if (path) parts.append(shape("path", { class: "ln " + hue + (level ? " raw" : ""), d: path, "stroke-dasharray": level ? null : dash(line.colour) }));
    if (level) parts.append(shape("path", { class: "ln smo " + hue, d: trace(line.x, smoothed(line.mean || line.y, level), across, up, log, logx)[0], "stroke-dasharray": dash(line.colour) }));
    const dots = points || line.x.length <= 12 ? line.x.flatMap((x, at) => line.y[at] === null || log && line.y[at] <= 0 || logx && x <= 0 ? [] : [across.place(x).toFixed(1) + "," + up.place(line.y[at]).toFixed(1)]) : alone.slice(0, 100);
    for (const dot of dots) { const [cx, cy] = dot.split(","); parts.append(shape("circle", { class: "f " + hue, cx, cy, r: 2.6 })); }
  }
  const drawable = x => x >= across.low && x <= across.high && (!logx || x > 0);
  const odd = shown.flatMap(line => line.odd).filter(([x]) => drawable(x)).slice(0, 200).map(([x]) => shape("path", { class: "odd", d: "M" + (across.place(x) - 4).toFixed(1) + ",2h8l-4,7z" }));
  const chart = shape("svg", { viewBox: "0 0 " + width + " " + height, role: "img", tabindex: 0, "aria-label": spoken(spec, shown) },
    frame(across, up, left, right, top, bottom, spec.axis), ...events(spec.events || [], across, drawable, bottom), parts, ...odd);
  if (empty) chart.append(label((left + right) / 2, height / 2, shown.length ? "no finite value" : "every line is switched off", "middle"));
  own.watch(chart, across, left, right, top, bottom);
  return chart;
}

const widest = places => { // how wide bars at these places may be
  const several = [...new Set(places)].sort((a, b) => a - b);
  return several.length > 1 ? Math.min(...several.slice(1).map((place, at) => place - several[at])) : 1;
};

function within(line, [low, high]) {
  const from = found(line.x, low), to = found(line.x, high * (1 + 1e-12)), part = list => list && list.slice(from, to);
  return { ...line, x: part(line.x), y: part(line.y), low: part(line.low), high: part(line.high) };
}

function ends(lists, positive) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) if (value !== null && value !== undefined && !(positive && value <= 0)) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

function band(line, across, up, log, logx) {
  const floor = log ? Math.max(up.low, Number.MIN_VALUE) : -Infinity, edge = [];
  const kept = line.x.map((_, at) => at).filter(at => line.low[at] !== null && (!logx || line.x[at] > 0) && (!log || line.high[at] > 0));
  const point = (at, y) => across.place(line.x[at]).toFixed(1) + "," + up.place(Math.max(y[at], floor)).toFixed(1);
  for (const at of kept) edge.push(point(at, line.high));
  for (const at of kept.reverse()) edge.push(point(at, line.low));
  return edge.length ? "M" + edge.join("L") + "Z" : "";
}

const GRAVE = { failure: "bad", rule: "warn", restart: "warn", interruption: "warn" };

function events(list, across, drawable, bottom) { // what happened, over the curves: a dashed line with a mark below
  return list.filter(([x]) => drawable(x)).slice(0, 300).map(([x, kind, words]) => {
    const place = across.place(x).toFixed(1);
    return told(shape("g", { class: "event " + (GRAVE[kind] || ""), "data-event": kind }, shape("path", { class: "when", d: "M" + place + ",8V" + bottom }),
      shape("path", { d: "M" + place + "," + (bottom - 7) + "l5,7h-10z" }), shape("rect", { x: place - 5, y: 8, width: 10, height: bottom - 8, fill: "transparent" })), kind + ": " + words);
  });
}

function spoken(spec, lines) {
  const values = lines.slice(0, 12).map(line => line.name + " " + short(line.last)).join(", ");
  return (spec.title || "chart") + " over " + spec.axis + (values ? ": last " + values : "") + (lines.length > 12 ? ", and " + (lines.length - 12) + " more" : "");
}

// --- bars, points, parallel coordinates, shares ---------------------------------------------------------------------------

function drawBars(spec, look, width) {
  const left = Math.min(140, width / 3), right = width - 14, row = spec.row || 30, bottom = 4 + row * spec.rows.length, bar = Math.min(20, row - 4);
  const [low, high] = ends(spec.rows.flatMap(one => one.spans.map(span => span.slice(0, 2))));
  const across = axis(low, high, left, right, spec.seconds ? "clock" : "linear", Math.max(3, width / 130), true), parts = [];
  spec.rows.forEach((one, number) => {
    const middle = 4 + row * (number + .5);
    parts.push(told(label(0, middle + 4, cut(one.name, Math.floor(left / 7)), "start", "row"), one.name));
    for (const [start, end, hue, words, more] of one.spans) {
      const x = across.place(start), size = Math.max(.6, across.place(end) - x);
      parts.push(told(shape("rect", { class: "f " + hue, x: x.toFixed(1), y: middle - bar / 2, width: size.toFixed(1), height: bar, rx: 2 }), more));
      if (words && size > 6.6 * words.length + 8) parts.push(label(x + size / 2, middle + 4, words, "middle", "inside"));
    }
    for (const [place, words] of one.marks || []) parts.push(told(shape("path", { class: "odd", d: "M" + (across.place(place) - 5).toFixed(1) + "," + (middle - bar / 2 - 4) + "h10l-5,8z" }), words));
  });
  const grid = across.marks.map(([mark]) => "M" + across.place(mark).toFixed(1) + ",4V" + bottom).join("");
  const marks = across.marks.map(([mark, words]) => label(Math.min(across.place(mark), right), bottom + 16, words + (spec.unit || ""), across.place(mark) > right - 20 ? "end" : "middle"));
  return shape("svg", { viewBox: "0 0 " + width + " " + (bottom + 22), role: "img", "aria-label": spec.title || "bars: " + spec.rows.map(one => one.name).join(", ") }, shape("path", { class: "grd", d: grid }), ...parts, ...marks);
}

function drawPoints(spec, look, width) {
  const left = 62, right = width - 16, top = 12, height = spec.height || 280, bottom = height - 36, line = spec.line || [];
  const across = valueAxis(spec.points.map(one => one[0]), left + 8, right - 8, Math.max(3, width / 100), (spec.logs || [])[0]), up = valueAxis(spec.points.map(one => one[1]), bottom, top, 5, (spec.logs || [])[1]);
  const dots = spec.points.map(([x, y, hue, words, key]) => told(shape("circle", { class: "f " + paint(hue), cx: across.place(x).toFixed(1), cy: up.place(y).toFixed(1), r: 4, "data-key": key }), words));
  const path = line.map(([x, y], at) => (at ? "H" + across.place(x).toFixed(1) + "V" : "M" + across.place(x).toFixed(1) + ",") + up.place(y).toFixed(1)).join("");
  return shape("svg", { viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": (spec.title || "") + " " + spec.up + " against " + spec.across + ", " + spec.points.length + " points" },
    frame(across, up, left, right, top, bottom, spec.across + " (across), " + spec.up + " (up)"), ...dots, path ? shape("path", { class: "ln " + paint(2), d: path }) : null);
}

function drawParallel(spec, look, width) {
  const top = 34, bottom = 316, height = 330, gap = (width - 150) / Math.max(1, spec.axes.length - 1);
  const scales = spec.axes.map((one, at) => {
    const values = spec.rows.map(row => row.values[at]).filter(value => value !== null && value !== undefined);
    return values.length ? valueAxis(values, ...(one.down ? [top, bottom] : [bottom, top]), 5, one.logs) : axis(0, 1, bottom, top);
  });
  const rows = [...spec.rows].sort((a, b) => Boolean(b.weak) - Boolean(a.weak)).map(row => {
    let path = "";
    row.values.forEach((value, at) => { // a run that lacks a value goes on to the next one that it has
      if (value !== null && value !== undefined) path += (path ? "L" : "M") + (60 + gap * at).toFixed(1) + "," + scales[at].place(value).toFixed(1);
    });
    const words = row.name + ": " + spec.axes.map((one, at) => one.name + " " + (row.values[at] === null || row.values[at] === undefined ? "none" : short(row.values[at]))).join(", ");
    return told(shape("g", { class: "run" + (row.weak ? " weak" : ""), "data-key": row.key }, shape("path", { class: "ln " + paint(row.colour), d: path, "stroke-dasharray": row.weak ? null : dash(row.colour) })), words);
  });
  const axes = spec.axes.map((one, at) => {
    const x = 60 + gap * at, room = Math.max(6, Math.floor(gap / 7));
    return shape("g", { class: "over", "data-axis": one.name }, shape("path", { class: "axis", "stroke-width": 2, d: "M" + x.toFixed(1) + "," + top + "V" + bottom }), told(label(x, at % 2 && gap < 90 ? 26 : 14, cut(one.name, Math.max(room, 14)), "middle", "row"), one.name),
      ...scales[at].marks.map(([mark, words]) => label(x + 5, scales[at].place(mark) + 4, cut(words, room), "start")));
  });
  return shape("svg", { viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": "parallel coordinates of " + spec.rows.length + " runs: " + spec.axes.map(one => one.name).join(", ") }, ...rows, ...axes);
}

function drawRanked(spec, look, width) {
  const left = Math.min(200, width * .4), most = width - left - 60;
  const rows = spec.rows.flatMap(([name, share], at) => [told(label(left - 10, 24 * at + 17, cut(name, Math.floor(left / 7)), "end", "row"), name),
    shape("rect", { class: "f k0", x: left, y: 24 * at + 4, width: Math.max(1, most * share).toFixed(1), height: 17, rx: 3 }), label(left + 6 + most * share, 24 * at + 17, Math.round(100 * share) + " %", "start")]);
  const words = spec.rows.map(([name, share]) => name + " " + Math.round(100 * share) + " %").join(", ");
  return shape("svg", { viewBox: "0 0 " + width + " " + (24 * spec.rows.length + 8), role: "img", "aria-label": "shares: " + words }, ...rows);
}

const DRAW = { lines: drawLines, bars: drawBars, points: drawPoints, parallel: drawParallel, ranked: drawRanked };

// --- a figure ------------------------------------------------------------------------------------------------------------

class Figure {
  constructor(acts) {
    this.acts = acts || {}; this.range = null; this.own = new Set(); this.hidden = new Set(); this.lines = [];
    this.legend = make("div", { class: "legend" });
    this.element = make("figure", {}, this.legend);
    new ResizeObserver(() => { if (this.spec && Math.abs(this.width() - this.drawn) > 3) this.redraw(); }).observe(this.element);
  }

  width() { return Math.max(240, Math.round(this.element.clientWidth) || 560); }

  draw(spec, look) {
    this.spec = spec; this.look = look || {};
    this.redraw();
  }

  redraw() {
    const { spec, look } = this, focused = this.picture && document.activeElement === this.picture;
    this.drawn = this.width();
    this.hidden = new Set([...(look.hidden || []), ...this.own]);
    if (spec.kind === "lines") {
      const lines = spec.lines.filter(line => line.x.length).map((line, number) => ({ colour: number, ...line }));
      this.lines = look.group ? grouped(lines.filter(line => !this.hidden.has(line.name)), look.group, look.logx) : lines;
      this.chips();
    } else this.legend.hidden = true;
    const picture = DRAW[spec.kind](spec, look, this.drawn, this);
    if (this.picture) this.picture.replaceWith(picture); else this.element.append(picture);
    this.picture = picture;
    if (focused) picture.focus();
  }

  chips() { // the legend: a chip a line, which switches it on and off; names, and the last values or those at the pointer
    this.values = new Map();
    const held = this.legend.contains(document.activeElement) ? document.activeElement.dataset.line : null;
    const chips = this.lines.map(line => {
      const value = make("b", {}, line.more || short(line.last)), odd = {};
      for (const [, kind, count] of line.odd) odd[kind] = (odd[kind] || 0) + count;
      const said = Object.entries(odd).map(([kind, count]) => count + " " + kind).join(", ");
      const chip = button("", () => this.toggle(line.name), "chip");
      chip.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
      chip.dataset.line = line.name;
      chip.append(sample(line.colour), line.name + " ", value, said ? make("span", { class: "bad" }, "▼ " + said + ", the first at " + this.spec.axis + " " + this.at(line.odd[0][0])) : "");
      this.values.set(line.name, [value, line]);
      return chip;
    });
    this.place = make("span", { hidden: "" });
    const counted = {};
    for (const [, kind] of this.spec.events || []) counted[kind] = (counted[kind] || 0) + 1;
    const happened = Object.entries(counted).map(([kind, count]) => make("span", { class: "event " + (GRAVE[kind] || "") }, "▲ " + count + " " + kind + (count > 1 ? "s" : "")));
    this.legend.replaceChildren(this.place, ...chips, ...happened, ...((this.spec.once || []).length ? [make("span", {}, "once: " + this.spec.once.join(", "))] : []));
    if (held !== null) chips.find(chip => chip.dataset.line === held)?.focus();
  }

  at(x) { return this.spec.axis === "time" ? lasting(x) : short(x); }

  toggle(name) {
    if (this.acts.toggle && !this.look.group) { this.acts.toggle(name); return; }
    if (this.own.has(name)) this.own.delete(name); else this.own.add(name);
    this.redraw();
  }

  tell(x) { // the values at a place, the last ones where it is null
    this.place.hidden = x === null;
    this.place.textContent = x === null ? "" : this.spec.axis + " " + this.at(x);
    for (const [value, line] of this.values.values()) {
      if (x === null) { value.textContent = line.more || short(line.last); continue; }
      const at = found(line.x, x), near = at > 0 && (at === line.x.length || x - line.x[at - 1] < line.x[at] - x) ? at - 1 : at;
      if (line.y[near] !== null && line.y[near] !== undefined) value.textContent = short(line.y[near]);
    }
  }

  watch(chart, across, left, right, top, bottom) { // the pointer and the keys
    const rule = shape("path", { class: "at", visibility: "hidden", d: "M0," + top + "V" + bottom }), pick = shape("rect", { class: "pick", y: top, height: bottom - top, visibility: "hidden" });
    chart.append(rule, pick);
    const place = event => { const box = chart.getBoundingClientRect(); return Math.min(right, Math.max(left, (event.clientX - box.left) / box.width * this.drawn)); };
    const point = x => { rule.setAttribute("visibility", x === null ? "hidden" : "visible"); if (x !== null) rule.setAttribute("transform", "translate(" + x.toFixed(1) + ",0)"); this.tell(x === null ? null : across.value(x)); };
    let from = null, key = null;
    chart.addEventListener("pointerdown", event => { if (event.pointerType === "mouse" && event.button === 0) { from = place(event); chart.setPointerCapture(event.pointerId); } });
    chart.addEventListener("pointermove", event => {
      const x = place(event);
      point(x);
      if (from === null) return;
      pick.setAttribute("x", Math.min(from, x)); pick.setAttribute("width", Math.abs(x - from)); pick.setAttribute("visibility", "visible");
    });
    chart.addEventListener("pointerup", event => {
      const x = place(event), start = from;
      from = null;
      pick.setAttribute("visibility", "hidden");
      if (start !== null && Math.abs(x - start) >= 6) this.zoom(across.value(Math.min(start, x)), across.value(Math.max(start, x)));
    });
    chart.addEventListener("pointerleave", () => { if (from === null) point(null); });
    chart.addEventListener("dblclick", () => this.whole());
    chart.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], middle = key === null ? (left + right) / 2 : key;
      if (step) { key = Math.min(right, Math.max(left, (key === null ? step > 0 ? left - 8 : right + 8 : key) + 8 * step)); point(key); }
      else if (event.key === "+") this.zoom(across.value(Math.max(left, middle - (right - left) / 4)), across.value(Math.min(right, middle + (right - left) / 4)));
      else if (event.key === "-" || event.key === "Escape") this.whole();
      else return;
      event.preventDefault();
    });
  }

  zoom(low, high) {
    this.range = [low, high];
    if (this.acts.zoom) this.acts.zoom(low, high); else this.redraw();
  }

  whole() {
    this.range = null;
    if (this.acts.whole) this.acts.whole(); else this.redraw();
  }
}

function figure(spec, look, acts) {
  const made = new Figure(acts);
  made.draw(spec, look);
  return made;
}

// --- the charts of a file that we have written: each lies in it as JSON, below what is told without a script ---------------

function unfold() {
  const logs = document.getElementById("log"), smooth = document.getElementById("smooth"), made = [];
  const look = () => ({ log: Boolean(logs && logs.checked), smooth: smooth && smooth.checked ? 3 : 0 });
  for (const place of document.querySelectorAll(".figure > script[type='application/json']")) {
    const spec = JSON.parse(place.textContent), one = figure(spec, look());
    place.parentElement.querySelectorAll(".told").forEach(words => words.remove());
    if (spec.title) one.element.dataset.chart = spec.title;
    place.replaceWith(one.element);
    made.push([one, spec]);
    one.draw(spec, look());
  }
  for (const box of [logs, smooth]) if (box) box.addEventListener("change", () => { for (const [one, spec] of made) if (spec.kind === "lines") one.draw(spec, look()); });
}

return { paint, sample, make, button, short, lasting, figure, unfold, axis, smoothed, grouped };

})();

const { paint, sample, make, button, short, lasting, figure, unfold } = charts;
