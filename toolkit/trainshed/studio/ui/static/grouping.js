// The table of runs by groups: a row for all runs that have the same value in a column. Needs charts.js.
"use strict";

// rows: as the table has them; at: the number of the column. A group is a row, too: its numbers are means, `off` their standard deviations.
function groupsOf(rows, columns, at) {
  const groups = new Map();
  for (const row of rows) {
    const value = columns[at][0] === "state" ? row.state : row.values[at], name = JSON.stringify(value);
    if (!groups.has(name)) groups.set(name, { value, members: [] });
    groups.get(name).members.push(row);
  }
  return [...groups.values()].map(({ value, members }) => {
    const summed = columns.map((_, column) => column === at ? [value, null] : summary(members.map(row => row.values[column])));
    return { key: "", members, values: summed.map(([mean]) => mean), off: summed.map(([, off]) => off) };
  });
}

function summary(values) { // [mean, standard deviation] of numbers, [the value, null] where all have the same, else nothing
  const numbers = values.filter(value => typeof value === "number");
  if (!numbers.length) return [new Set(values.map(value => JSON.stringify(value))).size === 1 ? values[0] : null, null];
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  const off = Math.sqrt(numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, numbers.length - 1));
  return [mean, numbers.length < 2 ? null : off > Math.abs(mean) * 1e-12 ? off : 0]; // what is less comes of rounding
}

function groupCell(group, [name, kind], at, plain) { // plain: the cell of a run with this value
  if (name === "name") return make("b", {}, group.members.length + (group.members.length === 1 ? " run" : " runs"));
  const value = group.values[at], off = group.off[at];
  if (name === "state" && typeof value !== "string") return make("span", { class: "soft" }, "");
  if (off === null || kind === "time") return plain(value);
  const said = kind === "duration" ? lasting : short;
  return make("span", { class: "num", title: "mean and standard deviation" }, said(value) + " ± " + said(off));
}
