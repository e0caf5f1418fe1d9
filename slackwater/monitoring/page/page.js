"use strict";
// The page of one process: polls the API once a second and draws the answers.

const EVERY_MS = 1000;
const EPOCHS = 300;
const STAGES = ["choose", "log", "plan", "read", "sink", "commit"];
const SVG = "http://www.w3.org/2000/svg";
const LANE_MAX = 18, LANE_MIN = 3, LINEAGE_MAX = 480, TOKEN_SHOWN = 16, SLOW_SHOWN = 10;
// More partitions at a time, or in all, are counted over time; only what holds back is drawn.
const LANES_MAX = 100, BARS_MAX = 1000, GROUP_STEPS = 120, GROUP_HEIGHT = 80;
const GAP_LEAST_MS = 10_000, ANSWER_MS_MAX = 4000, OLD_MS = 5000;

const $ = (id) => document.getElementById(id);
const view = { pipeline: null, seconds: 60, isLocal: false, answered: Date.now(), error: "" };

const get = async (path) => {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS_MAX) });
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

// All times on the page are in one zone, UTC unless the button says otherwise.
function iso(t) {
  const offset = view.isLocal ? new Date(t).getTimezoneOffset() * 60_000 : 0;
  return new Date(t - offset).toISOString();
}
const zone = () => {
  if (!view.isLocal) return "UTC";
  const minutes = -new Date().getTimezoneOffset(), size = Math.abs(minutes);
  const rest = size % 60 ? `:${String(size % 60).padStart(2, "0")}` : "";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${rest}`;
};
const clockTime = (t) => iso(t).slice(11, 19);
const moment = (t) => `${iso(t).slice(0, 23).replace("T", " ")} ${zone()}`;

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// All marks of an axis have the unit of its highest.
function unitOf(seconds) {
  return seconds < 120 ? [" s", 1] : seconds < 7200 ? [" min", 60] : [" h", 3600];
}

function amount(value) {
  if (value < 1e3) return value < 10 && value % 1 ? value.toFixed(1) : value.toFixed(0);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
}

// The sum of a field over the epochs of the last minute, per second.
function rate(epochs, field, now) {
  const since = now - 60_000;
  const recent = epochs.filter((epoch) => ms(epoch.committed_at) >= since && epoch[field] !== undefined);
  return recent.reduce((sum, epoch) => sum + epoch[field], 0) / 60;
}

function drawState(status) {
  const { keeps_up: keeps } = status;
  show("badge", status.state);
  $("badge").dataset.state = status.state;
  $("badge").dataset.level = keeps.level;
  const seconds = status.since === null ? null : (ms(status.clock) - ms(status.since)) / 1000;
  const role = status.is_owner ? "" : status.owner ? `; standing by for ${status.owner}` : "";
  show("since", seconds === null ? role : `for ${duration(Math.max(0, seconds))}${role}`);
  show("keeps-up", keeps.text);
  Object.assign($("keeps-up").dataset, { level: keeps.level, pace: keeps.pace, lag: status.lag_seconds ?? "", caughtUpIn: keeps.caught_up_in_seconds ?? "" });
  show("source", status.source);
  show("reason", status.reason ?? status.unready ?? "");
  document.title = `${status.pipeline}: ${status.state}, ${keeps.text}`;
}

function drawProof(status) {
  const proved = status.verification, differs = Boolean(proved?.different.length);
  const upTo = proved && ms(proved.proved_equal_up_to);
  const equal = upTo ? `Mirrors proved equal up to ${moment(upTo)}, ${duration((ms(status.clock) - upTo) / 1000)} ago` : "Mirrors are being compared; no whole round yet";
  show("proof", !proved ? "" : differs ? `Mirrors that differ from their tables: ${proved.different.join(", ")}` : equal);
  $("proof").dataset.level = differs ? "critical" : "ok";
  const items = status.rescans.filter((rescan) => rescan.state === "running").map((rescan) => {
    const item = document.createElement("li");
    item.textContent = `Reading ${rescan.table} again (${rescan.reason}): ${rescan.records} rows, ${rescan.corrected} corrected`;
    return item;
  });
  $("rescans").replaceChildren(...items);
}

function drawTiles(status, epochs) {
  show("lag", duration(status.lag_seconds));
  $("lag").dataset.level = status.keeps_up.lag_level;
  show("watermark", status.low_watermark === null ? "no low watermark yet" : `low watermark ${moment(ms(status.low_watermark))}`);
  const fresh = epochs.findLast((epoch) => epoch.freshness_seconds != null);
  show("freshness", duration(fresh?.freshness_seconds));
  show("records", `${amount(rate(epochs, "records", ms(status.clock)))} /s`);
  show("bytes", `${amount(rate(epochs, "size_bytes", ms(status.clock))).replace(/\d$/, "$& ")}B/s over the last minute`);
  const last = epochs.at(-1);
  show("seconds", duration(last?.seconds));
  show("epochs-count", last === undefined ? "none yet" : "duration of the last epoch");
  show("running", String(status.partitions.running));
  const stalls = status.stalled.length ? `, ${status.stalled.length} stalled` : "";
  show("waiting", `${status.partitions.waiting} waiting, ${status.partitions.finished} finished${stalls}`);
  show("retention", status.retention_used === null ? "–" : `${(status.retention_used * 100).toFixed(status.retention_used < 0.1 ? 2 : 0)} %`);
  $("retention").dataset.level = status.keeps_up.retention_level;
  show("gaps", status.gaps.length ? `accepted gaps: ${status.gaps.length}` : "no gaps");
}

// The pieces of a curve between gaps: where commits are much further apart than usual.
function piecesOf(points) {
  const apart = points.slice(1).map((point, i) => point[0] - points[i][0]).sort((a, b) => a - b);
  const gap = Math.max(GAP_LEAST_MS, 4 * (apart[Math.floor(apart.length / 2)] ?? 0));
  const pieces = [];
  for (const point of points) {
    const piece = pieces.at(-1);
    if (piece && point[0] - piece.at(-1)[0] <= gap) piece.push(point); else pieces.push([point]);
  }
  return [pieces, gap];
}

// Draws points up to now. rises: between epochs the value rises by one a second, as a lag does.
function drawPlot(svg, points, now, rises) {
  svg.replaceChildren();
  const width = svg.clientWidth, height = svg.clientHeight, left = 52, bottom = 16;
  if (points.length === 0) return;
  const first = points[0][0], last = Math.max(now, points.at(-1)[0]);
  const [pieces, gap] = piecesOf(points);
  const gaps = pieces.map((piece, i) => [piece.at(-1), pieces[i + 1]?.[0][0] ?? last]).filter(([from, to]) => to - from[0] > gap);
  const risen = ([[t, v], to]) => v + (to - t) / 1000;
  const top = Math.max(...points.map((point) => point[1]), ...(rises ? gaps.map(risen) : []), 1e-9) * 1.1;
  const x = (t) => left + (width - left - 4) * (t - first) / Math.max(1, last - first);
  const y = (v) => 4 + (height - bottom - 4) * (1 - v / top);
  for (const [from, to] of gaps) {
    const band = element("rect", { x: x(from[0]), y: 4, width: x(to) - x(from[0]), height: y(0) - 4, class: "gap" }, svg);
    element("title", {}, band, `no epoch from ${moment(from[0])} to ${moment(to)}`);
    if (x(to) - x(from[0]) > 60) element("text", { x: (x(from[0]) + x(to)) / 2, y: y(0) - 6, "text-anchor": "middle" }, svg, "no epoch");
    if (rises) element("polyline", { points: `${x(from[0])},${y(from[1])} ${x(to)},${y(risen([from, to]))}`, class: "curve rising" }, svg);
  }
  const [unit, size] = rises ? unitOf(top) : ["", 1];
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    element("line", { x1: left, x2: width, y1: at, y2: at, class: "axis" }, svg);
    const value = top * part / size;
    const text = part === 0 ? "0" : value < 10 ? value.toFixed(value < 1 ? 2 : 1) : amount(value);
    element("text", { x: left - 4, y: at + 4, "text-anchor": "end" }, svg, `${text}${unit}`);
  }
  for (const [t, anchor] of [[first, "start"], [last, "end"]]) {
    element("text", { x: x(t), y: height - 2, "text-anchor": anchor }, svg, clockTime(t));
  }
  for (const piece of pieces) {
    // A single epoch between two gaps is still to be seen.
    const ends = piece.length > 1 ? piece : [piece[0], [piece[0][0] + (last - first) / 200, piece[0][1]]];
    const line = ends.map(([t, v]) => `${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
    element("polygon", { points: `${x(ends[0][0])},${y(0)} ${line} ${x(ends.at(-1)[0])},${y(0)}`, class: "area" }, svg);
    element("polyline", { points: line, class: "curve" }, svg);
  }
}

// Each partition gets the first lane that is free from its start, below those that hold back.
function lanesOf(partitions, until, marked) {
  const lanes = new Map(partitions.filter((p) => marked.has(p.token)).map((p, lane) => [p.token, lane]));
  const above = lanes.size, free = [];
  for (const p of partitions) {
    if (lanes.has(p.token)) continue;
    let lane = free.findIndex((at) => at <= p.from);
    if (lane < 0) lane = free.length;
    free[lane] = p.to ?? until;
    lanes.set(p.token, above + lane);
  }
  return [lanes, above + free.length];
}

// Partitions beyond a hundred, as the number of those that were alive at each time.
function drawGroup(svg, others, x, since, until, top) {
  const counts = Array.from({ length: GROUP_STEPS }, (_, step) => {
    const at = since + (until - since) * (step + 0.5) / GROUP_STEPS;
    return others.filter((p) => p.from <= at && (p.to ?? until) > at).length;
  });
  const most = Math.max(...counts, 1);
  counts.forEach((count, step) => {
    const from = x(since + (until - since) * step / GROUP_STEPS), to = x(since + (until - since) * (step + 1) / GROUP_STEPS);
    const height = GROUP_HEIGHT * count / most;
    const bar = element("rect", { x: from, y: top + GROUP_HEIGHT - height, width: to - from + 0.5, height, class: "group" }, svg);
    element("title", {}, bar, `${count} partitions`);
  });
  element("text", { x: 2, y: top + 12 }, svg, `${most} at most`);
  return GROUP_HEIGHT;
}

function drawBars(svg, partitions, x, until, marked) {
  const [lanes, count] = lanesOf(partitions, until, marked);
  const lane = Math.max(LANE_MIN, Math.min(LANE_MAX, LINEAGE_MAX / Math.max(1, count)));
  const byToken = new Map(partitions.map((p) => [p.token, p]));
  const middle = (p) => (lanes.get(p.token) + 0.5) * lane;
  for (const p of partitions) {
    for (const token of p.parents) {
      const parent = byToken.get(token);
      if (parent === undefined) continue;
      const at = x(p.from);
      element("path", { d: `M${at - 3},${middle(parent)} L${at + 3},${middle(p)}` }, svg);
    }
  }
  for (const p of partitions) {
    const from = x(p.from), to = x(p.to ?? until);
    const bar = element("rect", {
      x: from, y: lanes.get(p.token) * lane + lane * 0.15, width: Math.max(1.5, to - from - 1),
      height: lane * 0.7, class: marked.has(p.token) ? "stalled" : p.state, "data-token": p.token,
    }, svg);
    const end = p.to === null ? "now" : moment(p.to);
    element("title", {}, bar, `${p.token}\n${p.state}, ${moment(p.from)} to ${end}, stalls: ${p.stalls}`);
  }
  return count * lane;
}

function drawLineage(answered, status) {
  // Those of Bigtable have positions in place of a lineage.
  const partitions = answered.filter((p) => p.token !== undefined);
  const positions = answered.length - partitions.length;
  const svg = $("lineage");
  const until = Math.max(ms(status.low_watermark) ?? 0, ms(status.clock) - (status.lag_seconds ?? 0) * 1000);
  const since = until - view.seconds * 1000;
  const shown = partitions
    .map((p) => ({ ...p, from: ms(p.start_timestamp), to: ms(p.end_timestamp) }))
    .filter((p) => (p.to ?? until) >= since)
    .sort((a, b) => a.from - b.from || (a.token < b.token ? -1 : 1));
  // What holds the low watermark back comes first, the furthest behind at the top.
  const queries = [status.held_back_by, ...status.slow_queries].filter((query) => query && (query.stalls || query === status.held_back_by));
  const marked = new Set(queries.map((query) => query.partition));
  const byToken = new Map(shown.map((p) => [p.token, p]));
  const first = [...marked].map((token) => byToken.get(token)).filter((p) => p !== undefined);
  const others = shown.filter((p) => !marked.has(p.token));
  const isGrouped = shown.length > BARS_MAX || (shown.length > LANES_MAX && lanesOf(shown, until, marked)[1] > LANES_MAX);
  svg.replaceChildren();
  const width = svg.clientWidth;
  const x = (t) => Math.max(0, (width - 2) * (t - since) / (until - since));
  let height = drawBars(svg, isGrouped ? first : [...first, ...others], x, until, marked);
  if (isGrouped) height += drawGroup(svg, others, x, since, until, height + 4) + 4;
  height = Math.max(60, height + 18);
  svg.style.height = `${height}px`;
  element("text", { x: 0, y: height - 3 }, svg, clockTime(since));
  element("text", { x: width, y: height - 3, "text-anchor": "end" }, svg, clockTime(until));
  const of = (state) => others.filter((p) => p.state === state).length;
  show("grouped", isGrouped ? `${first.length ? `${others.length} others` : `${others.length} partitions`}, counted over time: ${of("running")} running, ${of("waiting")} waiting, ${of("finished")} finished.` : "");
  if (positions) show("grouped", `${positions} partitions, without a history. \`slackwater partitions\` lists them.`);
  drawSlow(status);
}

// The labels are shown on a phone, where a row is not a line.
function fillRow(row, cells) {
  for (const [label, text] of cells) {
    const cell = row.insertCell();
    cell.textContent = text;
    if (label) cell.dataset.label = label;
  }
}

// Bigtable's replication holds nothing up, and changes of such a partition come later.
function standing([first, ...others]) {
  if (first === undefined) return "";
  const more = others.length ? `, and of ${others.length} others` : "";
  return `Replication of partition ${first.keys} stands still${more}. It is complete through ${moment(ms(first.replication_stands_at))}.`;
}

function drawSlow(status) {
  // While the source is away no partition is to blame.
  const held = status.source_silent_seconds ? null : status.held_back_by ?? status.stalled[0];
  show("held", held ? `Partition ${held.partition.slice(0, TOKEN_SHOWN)}… holds the low watermark back. Its query has been open for ${duration(held.seconds)}, silent for ${duration(held.silent_seconds)}; stalls: ${held.stalls}; complete through ${moment(ms(held.watermark))}.` : standing(status.replication_stands_still));
  const rows = status.slow_queries.slice(0, SLOW_SHOWN).map((query) => {
    const row = document.createElement("tr");
    fillRow(row, [["", `${query.partition.slice(0, TOKEN_SHOWN)}…`], ["read up to", clockTime(ms(query.watermark))], ["open", duration(query.seconds)], ["silent", duration(query.silent_seconds)], ["stalls", query.stalls]]);
    row.title = query.partition;
    return row;
  });
  $("slow").hidden = !held || rows.length < 2;
  $("slow").tBodies[0].replaceChildren(...rows);
}

function drawEpochs(epochs) {
  const rows = epochs.slice(-15).reverse().map((epoch) => {
    const row = document.createElement("tr");
    fillRow(row, [["", moment(ms(epoch.low_watermark))], ["records", epoch.records], ["transactions", epoch.transactions], ["late", epoch.late_records], ["s", epoch.seconds.toFixed(2)]]);
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
    item.textContent = `${clockTime(ms(timestamp))} ${event}${details ? ` – ${details}` : ""}`;
    return item;
  });
  $("recent").replaceChildren(...items);
}

function drawPipelines(statuses) {
  const buttons = statuses.map((status) => {
    const button = document.createElement("button");
    button.textContent = statuses.length > 1 ? `${status.pipeline}: ${status.state}` : status.pipeline;
    button.setAttribute("aria-pressed", status.pipeline === view.pipeline);
    button.onclick = () => { view.pipeline = status.pipeline; refresh(); };
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
  drawProof(status);
  drawTiles(status, epochs);
  const now = ms(status.clock);
  drawPlot($("lag-plot"), epochs.map((e) => [ms(e.committed_at), Math.max(0, (ms(e.committed_at) - ms(e.low_watermark)) / 1000)]), now, true);
  drawPlot($("records-plot"), epochs.map((e) => [ms(e.committed_at), e.records / Math.max(1e-3, (ms(e.low_watermark) - ms(e.start)) / 1000)]), now, false);
  drawLineage(partitions, status);
  drawEpochs(epochs);
  drawRecent(status.recent);
  drawAge(status.store_silent_seconds !== null);
}

// Says how old the numbers are, and dims them if the process or its metadata store is silent.
function drawAge(storeIsSilent) {
  const isOld = Date.now() - view.answered > OLD_MS;
  view.storeIsSilent = storeIsSilent ?? view.storeIsSilent;
  document.body.classList.toggle("stale", isOld || Boolean(view.storeIsSilent));
  $("connection").className = isOld ? "lost" : "";
  const at = `${clockTime(view.answered)} ${zone()}`;
  show("connection", isOld ? `no answer since ${at}, the numbers are old ${view.error}` : `updated ${at}`);
  show("zone", zone());
}

async function refresh() {
  try {
    await draw();
    view.answered = Date.now();
    view.error = "";
  } catch (error) {
    view.error = `(${error.message})`;
  }
  drawAge();
}

async function loop() {
  await refresh();
  setTimeout(loop, EVERY_MS);
}

$("zone").onclick = () => {
  view.isLocal = !view.isLocal;
  drawAge();
  refresh();
};
for (const button of document.querySelectorAll("#windows button")) {
  button.onclick = () => {
    view.seconds = Number(button.dataset.seconds);
    for (const other of document.querySelectorAll("#windows button")) {
      other.setAttribute("aria-pressed", other === button);
    }
    refresh();
  };
}
document.querySelector("#windows button").setAttribute("aria-pressed", "true");
setInterval(() => drawAge(), EVERY_MS);
loop();
