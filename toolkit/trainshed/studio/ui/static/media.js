// Pictures, tables and the like on a run's page: a card for each name, with a slider over its steps.
"use strict";

function media(body, path, going) {
  const cards = new Map(), grid = make("div", { class: "charts", id: "media" }), note = make("p", { class: "soft" });
  let had = "";
  body.replaceChildren(grid, note);
  repeat(async () => {
    const told = await ask(path + "/media?" + new URLSearchParams({ had }));
    had = told.had;
    for (const one of told.names || []) {
      if (!cards.has(one.name)) { cards.set(one.name, new Album(path, one.name)); grid.append(cards.get(one.name).element); }
      cards.get(one.name).take(one);
    }
    note.textContent = cards.size ? "" : "nothing yet: metrics.log(image=..., table=..., histogram=...) in the script";
    return going() ? 2000 : 8000;
  });
}

class Album {
  constructor(path, name) {
    this.path = path; this.held = new Map(); this.steps = []; this.turn = 0; this.seen = false;
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "step of " + name });
    this.slider.addEventListener("input", () => this.show());
    this.said = make("span", { class: "soft num" });
    this.place = make("div", { class: "media" });
    this.element = make("div", { class: "card", "data-media": name }, make("h3", {}, name), make("div", { class: "bar" }, this.slider, this.said), this.place);
    new IntersectionObserver(found => { this.seen = found[found.length - 1].isIntersecting; if (this.seen && !this.place.childElementCount) this.show(); }, { rootMargin: "300px" }).observe(this.element);
  }

  take(told) { // whoever looks at the latest sees the next one, too
    const latest = Number(this.slider.value) >= this.steps.length - 1;
    this.steps = told.steps; this.logged = told.logged;
    this.slider.max = Math.max(0, this.steps.length - 1);
    if (latest) this.slider.value = this.slider.max;
    this.slider.hidden = this.steps.length < 2;
    this.show();
  }

  async show() {
    const [step, epoch, time, files] = this.steps[Number(this.slider.value)] || [];
    if (!files) return;
    const at = step !== null ? "step " + step : epoch !== null ? "epoch " + short(epoch) : moment(time);
    this.said.textContent = at + (this.logged > this.steps.length ? " · " + this.steps.length + " of " + this.logged + " are kept" : "");
    this.slider.setAttribute("aria-valuetext", at);
    if (!this.seen) { this.place.replaceChildren(); return; }
    const turn = ++this.turn;
    try {
      const told = await Promise.all(files.map(one => this.content(one)));
      if (turn === this.turn) this.place.replaceChildren(...told.map((one, number) => this.drawn(one, files[number])));
    } catch (error) { if (turn === this.turn) trouble(error); }
  }

  async content([file, kind]) {
    if (!this.held.has(file)) {
      if (this.held.size > 60) this.held.clear();
      this.held.set(file, await ask(this.path + "/medium?" + new URLSearchParams({ file, kind })));
    }
    return this.held.get(file);
  }

  drawn(told, [file, kind, words]) {
    const said = [words, told.said].filter(Boolean).join(" · "), inside = [];
    if (told.source) {
      const picture = make("img", { src: told.source, alt: words || this.element.dataset.media });
      picture.addEventListener("load", () => { if (picture.naturalWidth < 160) picture.className = "pixels"; });
      inside.push(picture);
    }
    if (told.figure) inside.push(figure(told.figure).element);
    if (told.text) inside.push(make("pre", { tabindex: 0 }, told.text));
    if (told.rows.length) inside.push(make("div", { class: "wide", tabindex: 0 }, table(told.rows, told.columns)));
    if (told.sound) inside.push(player(told.sound));
    return make("figure", { class: told.figure ? "chart" : null }, ...inside, said ? make("figcaption", { class: "soft" }, said) : null, inside.length ? null : make("span", { class: "soft" }, kind));
  }
}

function player(sound) { // by Web Audio: the page's policy lets no media element load anything
  let playing = null;
  const turn = button("Play", async () => {
    if (playing) { playing.close(); playing = null; turn.textContent = "Play"; return; }
    const context = playing = new AudioContext(), source = context.createBufferSource();
    turn.textContent = "Stop";
    const end = () => { if (playing === context) { context.close(); playing = null; turn.textContent = "Play"; } };
    try {
      source.buffer = await context.decodeAudioData(Uint8Array.from(atob(sound), one => one.charCodeAt(0)).buffer);
      source.connect(context.destination);
      source.addEventListener("ended", end);
      source.start();
    } catch { end(); turn.textContent = "this browser cannot play it"; turn.disabled = true; }
  });
  return turn;
}
