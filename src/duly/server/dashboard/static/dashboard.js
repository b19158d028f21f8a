// Progressive enhancement: live updates, relative times, charts, selection. Every page and every
// action also works without this file.
(() => {
  "use strict";

  const body = document.body;
  const root = body.dataset.root;
  const find = (selector, from = document) => from.querySelector(selector);
  const every = (selector, from = document) => [...from.querySelectorAll(selector)];
  const cookies = JSON.parse(body.dataset.cookies);
  const cookie = (name, value) => {
    document.cookie = `${cookies[name]}=${value}; path=${cookies.path}; max-age=31536000; samesite=lax`;
  };

  // Times -----------------------------------------------------------------------------------------

  const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

  function distance(length) {
    if (length < MINUTE) return `${Math.floor(length / SECOND)} s`;
    if (length < HOUR) return `${Math.floor(length / MINUTE)} min`;
    if (length < 2 * DAY) {
      const minutes = Math.floor((length % HOUR) / MINUTE);
      return `${Math.floor(length / HOUR)} h${minutes ? ` ${minutes} min` : ""}`;
    }
    return `${Math.floor(length / DAY)} d`;
  }

  function relative(at) {
    const length = at - Date.now();
    if (Math.abs(length) < 2 * SECOND) return "now";
    return length > 0 ? `in ${distance(length)}` : `${distance(-length)} ago`;
  }

  function tellTime() {
    for (const element of every("time[data-relative]")) {
      const text = relative(Date.parse(element.dateTime));
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // Use the browser's time zone if none was chosen and the token has none.
  function adoptZone() {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const isKept = () => document.cookie.includes(`${cookies.tz}=`);
    if (zone && !isKept() && !("hasZone" in body.dataset)) {
      cookie("tz", zone);
      const kept = isKept();
      if (kept && zone !== body.dataset.tz) location.reload();
    }
  }

  // Charts ----------------------------------------------------------------------------------------

  const charts = new Map();

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function drawChart(element) {
    const text = element.dataset.chart;
    const known = charts.get(element);
    const look = text + document.documentElement.dataset.theme + colour("--text");
    if (known && known.look === look) return;
    const series = JSON.parse(text);
    const some = (counts) => counts.map((count) => count || null);
    const data = [series.x, some(series.succeeded), some(series.failed)];
    if (known && known.theme === colour("--text")) {
      known.look = look;
      known.plot.setData(data);
      return;
    }
    if (known) known.plot.destroy();
    element.replaceChildren();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui" };
    const bars = uPlot.paths.bars({ size: [0.8, 40] });
    const clock = new Intl.DateTimeFormat("en-GB", { timeZone: series.tz, hour: "2-digit", minute: "2-digit" });
    const date = new Intl.DateTimeFormat("en-GB", { timeZone: series.tz, day: "numeric", month: "short" });
    const label = (at) => `${date.format(at * SECOND)} ${clock.format(at * SECOND)}`;
    const times = (_, splits) => splits.map((at) => (clock.format(at * SECOND) === "00:00" ? date : clock).format(at * SECOND));
    const plot = new uPlot({
      width: element.clientWidth, height: 200, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), series.tz),
      cursor: { drag: { x: true, y: false } }, scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] } },
      axes: [{ ...axis, values: times }, { ...axis, size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }],
      series: [
        { label: "Time", value: (_, at) => at == null ? "–" : label(at) },
        { label: "Succeeded", stroke: colour("--good-fill"), fill: colour("--good-fill"), paths: bars, width: 0, points: { show: false }, value: (_, count) => count ?? "–" },
        { label: "Failed", stroke: colour("--bad"), fill: colour("--bad"), paths: bars, width: 0, points: { show: false }, value: (_, count) => count ?? "–" },
      ],
    }, data, element);
    charts.set(element, { plot, look, theme: colour("--text") });
  }

  function drawCharts() {
    for (const [element, { plot }] of charts) {
      if (!element.isConnected) { plot.destroy(); charts.delete(element); }
    }
    if (window.uPlot) every("[data-chart]").forEach(drawChart);
  }

  addEventListener("resize", () => {
    for (const [element, { plot }] of charts) plot.setSize({ width: element.clientWidth, height: 200 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

  // Selection, confirmations, theme ---------------------------------------------------------------

  function countMarks() {
    for (const bar of every("[data-bulk]")) {
      const marks = every("td.tick input", bar.form || bar.closest("form"));
      const marked = marks.filter((mark) => mark.checked).length;
      find("[data-count]", bar).textContent = `${marked} selected`;
      const all = find("[data-all]", bar);
      all.checked = marks.length > 0 && marked === marks.length;
      all.indeterminate = marked > 0 && marked < marks.length;
    }
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) {
      for (const mark of every("td.tick input", event.target.form)) mark.checked = event.target.checked;
    }
    if (event.target.matches("td.tick input, [data-all]")) countMarks();
  });

  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (button && button.dataset.confirm && !confirm(button.dataset.confirm)) event.preventDefault();
  }, true);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-switch] button");
    if (!button) return;
    event.preventDefault();
    cookie("theme", button.value);
    document.documentElement.dataset.theme = button.value;
    for (const each of every("[data-theme-switch] button")) each.setAttribute("aria-pressed", each === button);
    drawCharts();
  });

  document.addEventListener("click", (event) => {
    for (const open of every("details.drop[open]")) if (!open.contains(event.target)) open.open = false;
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") every("details.drop[open]").forEach((open) => { open.open = false; find("summary", open).focus(); });
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (event.key === "/") {
      const search = find("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); }
    }
  });

  // Leave empty filters out of the URL.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.verb !== "get") return;
    for (const [name, value] of [...event.detail.formData.entries()]) if (value === "") event.detail.formData.delete(name);
  });

  // Live updates ----------------------------------------------------------------------------------
  //
  // An event that affects the page makes the page fetch itself again. Selections, typed text, open
  // details and the focus are kept. One tab follows the events and passes them on to the browser's
  // other tabs, because a browser opens only a few connections to a server.

  const WAIT = 60, SLOWER = 4, POLL = 2000;
  const state = { paused: false, stale: false, timer: 0, asked: 0, took: 0, running: false };
  const live = find("[data-live-state]");

  function show(word, look) {
    if (!live) return;
    live.hidden = false;
    live.className = `live ${look}`;
    find("[data-live-text]", live).textContent = word;
  }

  const topics = () => (find("#main").dataset.live || "").split(" ").filter(Boolean);

  function concerns(name, data) {
    return topics().some((topic) => {
      if (name === "gap") return true;
      if (topic === name) return true;
      if (topic === "scheduled-job") return name === "job" && Boolean(data.schedule_id);
      const [kind, id] = topic.split(":");
      if (kind === "schedule") return data.schedule_id === id || data.target === topic;
      if (kind === "job") return name === "job" && data.id === id || data.target === topic;
      return false;
    });
  }

  function hear(name, data) {
    if (!concerns(name, data)) return;
    state.stale = true;
    plan();
  }

  function plan() {
    if (state.paused || state.timer || state.running || document.hidden || !state.stale) return;
    const since = performance.now() - state.asked;
    const wait = Math.max(WAIT, SLOWER * state.took - since);
    state.timer = setTimeout(refresh, wait);
  }

  async function refresh() {
    state.timer = 0;
    state.stale = false;
    state.running = true;
    state.asked = performance.now();
    const address = location.href.split("#")[0];
    try {
      const answer = await fetch(address, { headers: { "X-Duly-Live": "1" } });
      if (answer.redirected || answer.status === 401) { location.reload(); return; }
      if (answer.ok && address === location.href.split("#")[0] && !state.paused) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = find("#main", page);
        if (fresh) morph(find("#main"), fresh);
      }
    } catch { /* the server may be restarting; the stream reconnects when it is back */ } finally {
      state.took = performance.now() - state.asked;
      state.running = false;
      plan();
    }
  }

  function keep(before, after) {
    if (before.nodeType !== 1) return true;
    if (before.hasAttribute("data-keep")) return false;
    if (before.matches("input[type=checkbox]")) after.toggleAttribute("checked", before.checked);
    else if (before.matches("input, textarea, select")) return false;
    else if (before.tagName === "DETAILS") after.toggleAttribute("open", before.open);
    else if (before.dataset.chart !== undefined) { before.dataset.chart = after.dataset.chart; return false; }
    return true;
  }

  function morph(before, after) {
    Idiomorph.morph(before, after, { morphStyle: "outerHTML" });
    settle();
    document.dispatchEvent(new CustomEvent("duly:updated"));
  }

  function settle() {
    countMarks();
    tellTime();
    drawCharts();
  }

  // Opens an EventSource; `tell` receives the name and data of each event.
  function follow(tell) {
    const source = new EventSource(`${root}/live`);
    for (const name of ["job", "tick", "change", "gap"]) {
      source.addEventListener(name, (event) => tell(name, JSON.parse(event.data)));
    }
    source.addEventListener("open", () => { show(state.paused ? "Paused" : "Live", state.paused ? "paused" : ""); });
    source.addEventListener("error", () => {
      if (!state.paused) show("Reconnecting", "waiting");
      if (source.readyState === EventSource.CLOSED) setTimeout(poll, POLL);
    });
    return source;
  }

  let polling = false;
  function poll() {
    if (polling) return;
    polling = true;
    show("Polling", "waiting");
    setInterval(() => { state.stale = true; plan(); }, POLL);
  }

  function lead() {
    const channel = new BroadcastChannel(`duly:${root}`);
    channel.addEventListener("message", (event) => hear(...event.data));
    show("Live", "");
    navigator.locks.request(`duly:${root}`, () => new Promise(() => {
      follow((name, data) => { channel.postMessage([name, data]); hear(name, data); });
    }));
  }

  // Web Locks need HTTPS or localhost. Without them, only visible tabs follow the events.
  function followWhileSeen() {
    let source = null;
    const turn = () => {
      if (document.hidden && source) { source.close(); source = null; }
      if (!document.hidden && !source) { source = follow(hear); state.stale = true; plan(); }
    };
    document.addEventListener("visibilitychange", turn);
    turn();
  }

  function start() {
    if (!topics().length) return;
    if (!window.EventSource) poll();
    else if (navigator.locks && window.BroadcastChannel) lead();
    else followWhileSeen();
    setInterval(() => { if (topics().includes("poll")) { state.stale = true; plan(); } }, SECOND);
    document.addEventListener("visibilitychange", plan);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pause]");
    if (!button) return;
    state.paused = !state.paused;
    button.setAttribute("aria-pressed", state.paused);
    show(state.paused ? "Paused" : "Live", state.paused ? "paused" : "");
    if (!state.paused) { state.stale = true; plan(); }
  });

  if (window.Idiomorph) {
    Idiomorph.defaults.ignoreActiveValue = true;
    Idiomorph.defaults.callbacks.beforeNodeMorphed = keep;
  }
  document.addEventListener("htmx:afterSwap", settle);
  adoptZone();
  settle();
  setInterval(tellTime, SECOND);
  start();
  document.documentElement.dataset.ready = "";
})();
