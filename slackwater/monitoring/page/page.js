"use strict";
// The page of one process: polls the API once a second and draws the answers.

const EVERY_MS = 1000;
const EPOCHS = 300;
const STAGES = ["choose", "log", "plan", "read", "sink", "commit"];
const SVG = "http://www.w3.org/2000/svg";
const LANE_MAX = 18, LANE_MIN = 0.3, LINEAGE_MAX = 480, TOKEN_SHOWN = 16;

const $ = (id) => document.getElementById(id);
const view = { pipeline: null, seconds: 60 };

const get = async (path) => {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
};
const ms = (timestamp) => (timestamp === null ? null : Date.parse(timestamp));
const show = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const element = (name, attributes, parent, text) => {
  const child = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  parent.append(child);
  return child;
};

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function amount(value) {
  if (value < 1e3) return value < 10 && value % 1 ? value.toFixed(1) : value.toFixed(0);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
}

// The sum of a field over the epochs of the last minute, per second.
function rate(epochs, field) {
  const since = Date.now() - 60_000;
  const recent = epochs.filter((epoch) => ms(epoch.committed_at) >= since && epoch[field] !== undefined);
  return recent.reduce((sum, epoch) => sum + epoch[field], 0) / 60;
}

function drawState(status) {
  show("badge", status.state);
  $("badge").dataset.state = status.state;
  const seconds = status.since === null ? null : (Date.now() - ms(status.since)) / 1000;
  const role = status.is_owner ? "" : status.owner ? `; standing by for ${status.owner}` : "";
  show("since", seconds === null ? role : `for ${duration(Math.max(0, seconds))}${role}`);
  show("source", status.source);
  show("reason", status.reason ?? "");
  document.title = `${status.pipeline}: ${status.state}`;
}

function drawTiles(status, epochs) {
  show("lag", duration(status.lag_seconds));
  show("watermark", status.low_watermark === null ? "no low watermark yet" : `low watermark ${status.low_watermark.slice(0, 23)}Z`);
  const fresh = epochs.findLast((epoch) => epoch.freshness_seconds != null);
  show("freshness", duration(fresh?.freshness_seconds));
  show("records", `${amount(rate(epochs, "records"))} /s`);
  show("bytes", `${amount(rate(epochs, "size_bytes"))}B/s over the last minute`);
  const last = epochs.at(-1);
  show("seconds", duration(last?.seconds));
  show("epochs-count", last === undefined ? "none yet" : "duration of the last epoch");
  show("running", String(status.partitions.running));
  const stalls = status.stalled.length ? `, ${status.stalled.length} stalled` : "";
  show("waiting", `${status.partitions.waiting} waiting, ${status.partitions.finished} finished${stalls}`);
  show("retention", status.retention_used === null ? "–" : `${(status.retention_used * 100).toFixed(status.retention_used < 0.1 ? 2 : 0)} %`);
  show("gaps", status.gaps.length ? `accepted gaps: ${status.gaps.length}` : "no gaps");
}

function drawPlot(svg, points) {
  svg.replaceChildren();
  const width = svg.clientWidth, height = svg.clientHeight, left = 44, bottom = 16;
  if (points.length < 2) return;
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const top = Math.max(...points.map((point) => point[1]), 1e-9) * 1.1;
  const x = (t) => left + (width - left - 4) * (t - first) / Math.max(1, last - first);
  const y = (v) => 4 + (height - bottom - 4) * (1 - v / top);
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    element("line", { x1: left, x2: width, y1: at, y2: at, class: "axis" }, svg);
    const label = top * part;
    element("text", { x: left - 4, y: at + 4, "text-anchor": "end" }, svg, label < 10 ? label.toFixed(label < 1 ? 2 : 1) : amount(label));
  }
  for (const [t, anchor] of [[first, "start"], [last, "end"]]) {
    element("text", { x: x(t), y: height - 2, "text-anchor": anchor }, svg, new Date(t).toLocaleTimeString());
  }
  const line = points.map(([t, v]) => `${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  element("polygon", { points: `${x(first)},${y(0)} ${line} ${x(last)},${y(0)}`, class: "area" }, svg);
  element("polyline", { points: line, class: "curve" }, svg);
}

// Each partition gets the first lane that is free from its start.
function lanesOf(partitions, until) {
  const free = [], lanes = new Map();
  for (const p of partitions) {
    let lane = free.findIndex((at) => at <= p.from);
    if (lane < 0) lane = free.length;
    free[lane] = p.to ?? until;
    lanes.set(p.token, lane);
  }
  return [lanes, free.length];
}

function drawLineage(partitions, status) {
  const svg = $("lineage");
  const until = Math.max(ms(status.low_watermark) ?? 0, Date.now() - (status.lag_seconds ?? 0) * 1000);
  const since = until - view.seconds * 1000;
  const shown = partitions
    .map((p) => ({ ...p, from: ms(p.start_timestamp), to: ms(p.end_timestamp) }))
    .filter((p) => (p.to ?? until) >= since)
    .sort((a, b) => a.from - b.from || (a.token < b.token ? -1 : 1));
  const [lanes, count] = lanesOf(shown, until);
  const lane = Math.max(LANE_MIN, Math.min(LANE_MAX, LINEAGE_MAX / Math.max(1, count)));
  const width = svg.clientWidth, height = Math.max(60, count * lane + 18);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const x = (t) => Math.max(0, (width - 2) * (t - since) / (until - since));
  const byToken = new Map(shown.map((p) => [p.token, p]));
  const marked = new Set(status.stalled.map((query) => query.partition));
  if (status.held_back_by) marked.add(status.held_back_by.partition);
  const middle = (p) => (lanes.get(p.token) + 0.5) * lane;
  for (const p of shown) {
    for (const token of p.parents) {
      const parent = byToken.get(token);
      if (parent === undefined) continue;
      const at = x(p.from);
      element("path", { d: `M${at - 3},${middle(parent)} L${at + 3},${middle(p)}` }, svg);
    }
  }
  for (const p of shown) {
    const from = x(p.from), to = x(p.to ?? until);
    const bar = element("rect", {
      x: from, y: lanes.get(p.token) * lane + lane * 0.15, width: Math.max(1.5, to - from - 1),
      height: lane * 0.7, class: marked.has(p.token) ? "stalled" : p.state, "data-token": p.token,
    }, svg);
    const end = p.end_timestamp ?? "now";
    element("title", {}, bar, `${p.token}\n${p.state}, ${p.start_timestamp} to ${end}, stalls: ${p.stalls}`);
  }
  element("text", { x: 0, y: height - 3 }, svg, new Date(since).toLocaleTimeString());
  element("text", { x: width, y: height - 3, "text-anchor": "end" }, svg, new Date(until).toLocaleTimeString());
  const held = status.held_back_by ?? status.stalled[0];
  show("held", held ? `Partition ${held.partition.slice(0, TOKEN_SHOWN)}… holds the low watermark back. Its query has been open for ${duration(held.seconds)}, silent for ${duration(held.silent_seconds)}; stalls: ${held.stalls}; complete through ${held.watermark}.` : "");
}

function drawEpochs(epochs) {
  const rows = epochs.slice(-15).reverse().map((epoch) => {
    const row = document.createElement("tr");
    for (const text of [epoch.low_watermark.slice(0, 23) + "Z", epoch.records, epoch.transactions, epoch.late_records, epoch.seconds.toFixed(2)]) {
      row.insertCell().textContent = text;
    }
    const bar = document.createElement("div");
    bar.className = "bar";
    for (const stage of STAGES) {
      const part = document.createElement("i");
      part.className = stage;
      part.title = `${stage} ${epoch.stages?.[stage] ?? "–"} s`;
      part.style.flexGrow = epoch.stages?.[stage] ?? 0;
      bar.append(part);
    }
    row.insertCell().append(bar);
    return row;
  });
  $("epochs").replaceChildren(...rows);
}

function drawRecent(recent) {
  const items = recent.slice(0, 10).map((entry) => {
    const { timestamp, level, event, pipeline, ...rest } = entry;
    const item = document.createElement("li");
    item.className = level;
    const details = Object.entries(rest).map(([key, value]) => `${key}: ${value}`).join(", ");
    item.textContent = `${new Date(timestamp).toLocaleTimeString()} ${event}${details ? ` – ${details}` : ""}`;
    return item;
  });
  $("recent").replaceChildren(...items);
}

function drawPipelines(statuses) {
  const buttons = statuses.map((status) => {
    const button = document.createElement("button");
    button.textContent = statuses.length > 1 ? `${status.pipeline}: ${status.state}` : status.pipeline;
    button.setAttribute("aria-pressed", status.pipeline === view.pipeline);
    button.onclick = () => { view.pipeline = status.pipeline; draw(); };
    return button;
  });
  $("pipelines").replaceChildren(...buttons);
}

async function draw() {
  const statuses = await get("api/pipelines");
  view.pipeline ??= statuses[0].pipeline;
  const name = encodeURIComponent(view.pipeline);
  const [status, epochs, partitions] = await Promise.all([
    get(`api/pipelines/${name}`),
    get(`api/pipelines/${name}/epochs?limit=${EPOCHS}`),
    get(`api/pipelines/${name}/partitions?seconds=${view.seconds}`),
  ]);
  drawPipelines(statuses);
  drawState(status);
  drawTiles(status, epochs);
  drawPlot($("lag-plot"), epochs.map((e) => [ms(e.committed_at), Math.max(0, (ms(e.committed_at) - ms(e.low_watermark)) / 1000)]));
  drawPlot($("records-plot"), epochs.map((e) => [ms(e.committed_at), e.records / Math.max(1e-3, (ms(e.low_watermark) - ms(e.start)) / 1000)]));
  drawLineage(partitions, status);
  drawEpochs(epochs);
  drawRecent(status.recent);
}

async function loop() {
  try {
    await draw();
    $("connection").className = "";
    show("connection", `updated ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    $("connection").className = "lost";
    show("connection", `no answer: ${error.message}`);
  }
  setTimeout(loop, EVERY_MS);
}

for (const button of document.querySelectorAll("#windows button")) {
  button.onclick = () => {
    view.seconds = Number(button.dataset.seconds);
    for (const other of document.querySelectorAll("#windows button")) {
      other.setAttribute("aria-pressed", other === button);
    }
    draw();
  };
}
document.querySelector("#windows button").setAttribute("aria-pressed", "true");
loop();
