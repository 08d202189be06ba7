// One job, live: loads the history by REST, then follows server-sent events.
import { BASE, call, get, showLive } from "./api.js";
import { showAttempts, showCheckpoints } from "./attempts.js";
import { allChanges, showChanges, takeEvent } from "./changes.js";
import { drawChanges, drawLines, drawMaps, drawPhases, drawTraffic, whenColoursChange } from "./charts.js";
import {
  barTone, byUser, bytes, cell, changeText, clock, counted, duration, element, epochsDone, fill, hasEnded, isGuest, levelClass, levelText, measured, metric, moment, number, overrideLevel, quality, rayText, repaint,
  packagesText, storageText, swatch, tile, times, words,
} from "./format.js";
import { inOrder, keep, keyOf, positionOf, rowsOf, takeBack, wholeHistory } from "./history.js";
import { hasLoggers, showLoggers } from "./loggers.js";
import { marksOf } from "./marks.js";
import { closeForm, openForm, showBatch, showOptimizer, showOverrides, showRounds } from "./override.js";
import { QUEUE_MS, readQueue, showWait } from "./queue.js";
import { showWhy } from "./why.js";
import { closeResize, openResize, showWorkers, tellWorkers } from "./workers.js";

const CHARTS_MS = 1000;
const RETRY_MS = 2000;
const WHY_MS = 5000;
const LOGGERS_MS = 10000;
const MAX_ROWS = 300;
// Items per request, on opening and for each click on "older": a long job has more than a browser can show.
const PAGE = 200;
// Epochs before these that the charts show, and epochs that a page which stays open keeps.
const POINTS = 400;
const MAX_KEPT = 3 * PAGE;
const PAST_EVENTS = 1000;
const MAX_LOG_LINES = 400;
const at = (id) => document.getElementById(id);
const ID = document.body.dataset.job;
const PATH = `/jobs/${ID}`;
const seen = { job: null, epochs: new Map(), decisions: new Map(), thinned: { epochs: [], decisions: [] }, overrides: [], schedule: null, totals: {}, older: {}, changes: [], events: [], lines: [] };
const epochs = () => inOrder(seen.epochs);
const decisions = () => inOrder(seen.decisions);
// Total number of items; the page may have loaded only the newest.
const count = (name) => Math.max(seen[name].size, seen.totals[name] ?? 0);
const changes = () => allChanges(seen.changes, seen.overrides);

function showHead() {
  const { job } = seen;
  const progress = job.progress;
  repaint(at("status"), job.status);
  document.title = `${job.name} · ${job.status.toLowerCase()} · Accordion`;
  at("message").textContent = job.message;
  at("message").className = job.status === "FAILED" ? "said bad" : "quiet small";
  at("time-out").hidden = !job.times_out_at || hasEnded(job.status);
  if (job.times_out_at) at("time-out").textContent = `Fails at ${moment(job.times_out_at)} if it has not ended by then (limits.total_seconds)`;
  at("storage").hidden = !job.storage;
  at("model").hidden = !job.storage || !job.progress?.epoch;
  if (job.storage) at("storage").textContent = storageText(job.storage);
  at("packages").hidden = !job.packages;
  if (job.packages) at("packages").textContent = `Packages: ${packagesText(job.packages)}`;
  at("ray").hidden = !job.ray_run;
  if (job.ray_run) at("ray").textContent = rayText(job.ray_run);
  const isFixed = hasEnded(job.status) || isGuest(job);
  at("pause").hidden = isFixed || job.desired !== "RUN";
  at("resume").hidden = isFixed || job.desired !== "PAUSE";
  at("retry").hidden = isGuest(job) || !hasEnded(job.status) || job.status === "SUCCEEDED";
  at("archive").hidden = !hasEnded(job.status) || job.archived;
  at("unarchive").hidden = at("archived").hidden = !job.archived;
  at("cancel").hidden = (isFixed && job.status !== "LOST") || job.desired === "CANCEL";
  at("to-override").hidden = hasEnded(job.status);
  if (hasEnded(job.status)) at("no-epochs").textContent = "No epoch was finished, so there are no charts.";
  const planned = isGuest(job) ? null : job.spec.training?.epochs ?? "?";
  at("epoch-text").textContent = `${epochsDone(count("epochs"), planned)} done`;
  at("bar").hidden = isGuest(job) && !hasEnded(job.status);
  at("bar").value = job.status === "SUCCEEDED" ? 1 : progress?.steps ? progress.step / progress.steps : 0;
  at("bar").className = barTone(job.status);
  at("pace").textContent = pace(job, progress);
  fill(at("tiles"), ...figures(job).map(tile));
  showWorkers(job);
}

const until = (job, begin) => duration((Date.parse(job.ended_at) - Date.parse(begin)) / 1000);

function pace(job, progress) {
  if (hasEnded(job.status)) return job.started_at ? `took ${until(job, job.created_at)}, ${until(job, job.started_at)} since training began` : "";
  if (!progress) return "";
  const step = `step ${progress.step}${progress.steps === null ? "" : ` of ${progress.steps}`}`;
  const rate = progress.samples_per_s === null ? "" : `${number(progress.samples_per_s)} samples/s`;
  const left = progress.eta_s === null ? "" : `${duration(progress.eta_s)} left`;
  return job.world_size ? [step, rate, left].filter(Boolean).join(" · ") : step;
}

function figures(job) {
  const progress = job.progress;
  const last = epochs().at(-1);
  const regimes = Object.values(last?.regime_by_layer ?? {});
  return [
    traffic(progress?.bytes),
    ["Training loss", number(progress?.loss ?? last?.loss), last ? `epoch ${last.epoch}: ${number(last.loss)}` : ""],
    ...main(epochs().findLast(({ metrics }) => measured([{ metrics }]).length)?.metrics ?? job.metrics),
    ["Critical layers", regimes.length ? `${regimes.filter((regime) => regime === "critical").length} of ${regimes.length}` : "–", counted(count("decisions"), "decision")],
    ["Learning rate", number(progress?.lr ?? last?.lr), job.spec.training?.optimizer?.name ?? ""],
    ["Workers", hasEnded(job.status) ? "–" : `${job.world_size}`, allowedText(job)],
  ];
}

// Bytes of each worker on the wire, beside those of an all-reduce of the uncompressed gradients.
function traffic(sent) {
  if (!sent) return ["Traffic saved", "–", "compared with uncompressed", true];
  if (!sent.wire && sent.dense) return ["Traffic saved", "–", "nothing is sent: one worker has no peers", true];
  const sizes = `each worker sent ${bytes(sent.wire)} (control ${bytes(sent.control_wire)}); uncompressed ${bytes(sent.dense_wire)}, in fp16 ${bytes(sent.dense_wire / 2)}`;
  return sent.wire > sent.dense_wire
    ? ["Traffic added", times(sent.dense_wire, sent.wire), sizes, true]
    : ["Traffic saved", times(sent.wire, sent.dense_wire), sizes, true];
}

const allowedText = (job) => {
  if (isGuest(job)) return "guest run";
  const now = hasEnded(job.status) ? "" : `${job.workers} allocated, `;
  const shards = job.spec.parallelism?.shard ?? 1;
  const replica = shards > 1 ? `, ${shards} in a replica` : "";
  return `${now}${job.min_workers} to ${job.max_workers} allowed${replica}; attempt ${job.attempt}`;
};

// The first two metrics; the chart and the table have all.
function main(metrics) {
  const names = measured([{ metrics }]).slice(0, 2);
  return names.length ? names.map((name) => [words(name), metric(name, metrics[name]), "newest evaluation"]) : [["Metrics", "–", "after the first epoch"]];
}

function showEpochs() {
  const rows = epochs();
  at("no-epochs").hidden = rows.length > 0;
  at("pictures").hidden = rows.length === 0;
  if (rows.length === 0) return;
  if (rows.length > MAX_KEPT && !seen.asked) reload();
  const history = { ...wholeHistory(seen), layers: layers(rows) };
  const view = { ...history, marked: marksOf({ ...history, changes: changes() }) };
  drawLines(view);
  drawTraffic(view);
  drawPhases(view);
  drawChanges({ ...view, threshold: seen.job.spec.policy?.threshold });
  drawMaps(view);
  fill(at("epochs"), ...rows.slice(-MAX_ROWS).reverse().map(epochRow));
}

const layers = (rows) => seen.schedule?.layers.map((row) => row.layer) ?? Object.keys(rows.at(-1)?.level_by_layer ?? {});

const epochRow = (row) => element("tr", { "data-epoch": row.epoch },
  ...[row.epoch, row.step, number(row.loss, 4), number(row.metrics.loss, 4), quality(row.metrics) || "–", number(row.lr), row.world_size,
    number(Object.values(row.seconds_by_phase).reduce((sum, value) => sum + value, 0)), bytes(row.bytes.wire), bytes(row.bytes.dense_wire),
    times(row.bytes.wire, row.bytes.dense_wire)].map((value) => cell("num", String(value))));

function showSchedule() {
  const { schedule, job } = seen;
  const { low, high } = job.spec.compression ?? {};
  fill(at("levels-legend"), ...[["low", `low: ${levelText(low)}`], ["high", `high: ${levelText(high)}`], ["none", "none"], ["half", "half: fp16"], ["other", "custom options"]]
    .map(([kind, text]) => swatch(kind, text)), element("span", {}, "◇ override"));
  if (!schedule) return;
  at("schedule-note").textContent = `${counted(schedule.layers.length, "layer")}, at epoch ${schedule.epoch}, step ${schedule.step}`;
  fill(at("schedule"), ...schedule.layers.map((row) => element("tr", {},
    cell("mono", row.layer), cell("mono", row.shape.join("×")), cell("", swatch(row.regime, row.regime)),
    cell("", swatch(levelClass(row.level), row.level)), cell("", `${row.method} ${levelText(row.options)}`),
    cell("", sayer(row)), cell("", row.policy_level))));
  showBatch(schedule.batch, schedule.batch && sayer(schedule.batch));
  showRounds(job.spec.local_steps, schedule, sayer({ said_by: schedule.local_steps_said_by }));
  showOptimizer(schedule, sayer);
}

const sayer = ({ said_by: id }) => (id === "policy" ? "policy" : overrideName(id));

// Found by its number, or by the begin of its ID, which has a dash.
const findOverride = (id) => seen.overrides.find((one) => String(one.number) === id || (id.includes("-") && one.id.startsWith(id)));

function overrideName(id) {
  const row = findOverride(id);
  return row ? `override ${row.number}` : id.includes("-") ? "override" : `override ${id}`;
}

// Reasons have the numbers of overrides, those of earlier versions the first digits of IDs; the page adds users.
const named = (text) => text.replace(/override ([0-9a-f]{8}-[0-9a-f-]{4,27}|\d+\b)/g, (_, id) => `${overrideName(id)}${byUser({ by: findOverride(id)?.requested_by })}`);

const decisionRow = ({ decision }) => {
  const regimes = Object.values(decision.regime_by_layer);
  const counts = Object.values(decision.level_by_layer).reduce((sum, level) => sum.set(level.name, (sum.get(level.name) ?? 0) + 1), new Map());
  return element("tr", {}, cell("num", String(decision.epoch)), cell("num", String(decision.step)), cell("", decision.cause.replace("_", " ")),
    cell("long", named(decision.reason)), cell("", `${regimes.filter((regime) => regime === "critical").length} of ${regimes.length}`),
    cell("", [...counts].map(([name, count]) => `${name} ${count}×`).join(", ")));
};

const showDecisions = () => fill(at("decisions"), ...decisions().slice(-MAX_ROWS).reverse().map(decisionRow));

const eventRow = ({ type, time, text }) => element("tr", {},
  cell("quiet small num", time ? clock(time) : ""), cell("", type), cell("long small", text));

const showAllChanges = () => showChanges(changes());

const showEvents = () => fill(at("events"), ...seen.events.slice(-MAX_ROWS).reverse().map(eventRow));

const showAllOverrides = () => showOverrides(ID, seen.overrides, { ended: hasEnded(seen.job.status), changed: () => again("overrides") });

// Loads the newest page of a history, or with a cursor the page before it.
async function page(name, cursor) {
  const { items, next_cursor: next, total } = await get(`${PATH}/${name}?order=newest&limit=${PAGE}${cursor ? `&cursor=${cursor}` : ""}`);
  seen.totals[name] = total;
  // Rows between those of the page and older ones may be missing: the older ones go.
  const isNew = !cursor && (!(name in seen.older) || !items.some((item) => seen[name].has(keyOf(item))));
  if (isNew) seen[name].clear();
  if (cursor || isNew) seen.older[name] = next;
  at("older").hidden = !seen.older.epochs && !seen.older.decisions;
  items.forEach((item) => keep(seen[name], item));
  return isNew;
}

async function loadRows() {
  const areNew = await Promise.all([page("epochs"), page("decisions")]);
  soonEpochs();
  [showHead, showDecisions].forEach(soon);
  if (!areNew.includes(true) || (!seen.older.epochs && !seen.older.decisions)) return;
  seen.thinned = rowsOf(await get(`${PATH}/history?points=${POINTS}`));
  soonEpochs();
}

// Begins anew with the newest rows.
function reload() {
  seen.older = {};
  again("rows");
}

async function showOlder() {
  const { epochs: epochCursor, decisions: decisionCursor } = seen.older;
  seen.asked = true;
  if (epochCursor) await page("epochs", epochCursor);
  if (decisionCursor) await page("decisions", decisionCursor);
  soonEpochs();
  soon(showDecisions);
}

const load = {
  job: async () => {
    const before = seen.job;
    seen.job = await get(PATH);
    soon(showHead);
    if (["status", "reason", "message"].some((name) => seen.job[name] !== before?.[name])) again("wait");
  },
  wait: loadWait,
  attempts: async () => { showAttempts((await get(`${PATH}/attempts`)).items); },
  checkpoints: async () => { showCheckpoints(ID, (await get(`${PATH}/checkpoints?kept=true`)).items); },
  rows: loadRows,
  overrides: async () => { seen.overrides = (await get(`${PATH}/overrides`)).items; soon(showAllOverrides); soon(showAllChanges); soon(showSchedule); soonEpochs(); },
  schedule: async () => { seen.schedule = await get(`${PATH}/schedule`); soon(showSchedule); },
  why: async () => { showWhy(await get(`${PATH}/why`)); },
  loggers: loadLoggers,
};

// Takes the row of an event. Events of before the stream was opened lack the values by layer; rows that the page lacks are loaded then.
function takeRow(name, row, isFull) {
  if (isFull) keep(seen[name], row);
  else if (Math.max(-1, ...[...seen[name].values()].map(positionOf)) < positionOf(row)) again("rows");
}

// Many events may arrive at once: each part of the page is drawn at most once per frame, and each list requested once.
const paints = new Set();
function soon(paint) {
  if (paints.size === 0) requestAnimationFrame(() => { const now = [...paints]; paints.clear(); if (seen.job) now.forEach((one) => one()); });
  paints.add(paint);
}

// Charts cost more than everything else together, so they are drawn less often, and on a slow machine take at most a quarter of its time.
let drawing;
let drawAgainAt = 0;
function soonEpochs() {
  drawing ??= setTimeout(() => {
    drawing = undefined;
    const began = performance.now();
    if (seen.job) showEpochs();
    const ended = performance.now();
    drawAgainAt = ended + Math.max(CHARTS_MS, 3 * (ended - began));
  }, Math.max(0, drawAgainAt - performance.now()));
}

// The answer is a mean over seconds, so it is requested less often than progress arrives.
let waiting;
let askedAt = -WHY_MS;
function soonWhy() {
  waiting ??= setTimeout(() => { waiting = undefined; askedAt = performance.now(); again("why"); }, Math.max(0, askedAt + WHY_MS - performance.now()));
}

// The queue is read only while the job waits in it, which one that starts later does not, and people look.
let queueTimer;
async function loadWait() {
  clearTimeout(queueTimer);
  if (seen.job?.status !== "QUEUED" || seen.job.reason === "SCHEDULED") { showWait(undefined, {}); return; }
  if (!document.hidden) {
    const queue = await readQueue();
    showWait(queue.items.find(({ id }) => id === ID), queue);
  }
  queueTimer = setTimeout(() => again("wait"), QUEUE_MS);
}

// No event tells what loggers send, which they do some time after each epoch and after the end of the job.
let loggersTimer;
async function loadLoggers() {
  clearTimeout(loggersTimer);
  if (!hasLoggers()) return;
  if (document.hidden || showLoggers((await get(`${PATH}/loggers`)).items)) loggersTimer = setTimeout(() => again("loggers"), LOGGERS_MS);
}

const pause = () => new Promise((go) => { setTimeout(go, RETRY_MS); });

// Lists and streams that failed to load.
const missing = new Set();

function showState() {
  const isOpen = (source) => source?.readyState === EventSource.OPEN;
  if (missing.size) showLive("lost");
  else if ([...streams.values()].every(isOpen)) showLive(hasEnded(seen.job.status) ? "over" : "live");
}

function came(name) {
  missing.delete(name);
  showState();
}

async function lost(name) {
  missing.add(name);
  showState();
  await pause();
  return true;
}

const asking = new Map();
function again(...names) {
  for (const name of names) {
    if (asking.has(name)) { asking.set(name, true); continue; }
    asking.set(name, false);
    load[name]().then(() => { came(name); return asking.get(name); }, () => lost(name)).then((more) => {
      asking.delete(name);
      if (more) again(name);
    });
  }
}

const TELL = {
  status: (data) => `${data.status.toLowerCase()}${byUser(data)}: ${data.message}`,
  epoch: ({ epoch, loss, metrics }) => `epoch ${epoch}: ${[`loss ${number(loss)}`, quality(metrics)].filter(Boolean).join(", ")}`,
  decision: ({ decision }) => named(decision.reason),
  override: (data) => `override ${data.number} (${overrideLevel(data)})${byUser({ by: data.requested_by })}: ${data.state.toLowerCase()}${data.message ? `; ${data.message}` : ""}`,
  workers: tellWorkers,
  checkpoint: ({ name, epoch, size_bytes: size }) => `${name}, ${bytes(size)}; resumes at epoch ${epoch}`,
  packages: packagesText,
  archive: (data) => `${data.archived ? "archived" : "unarchived"}${byUser(data)}`,
  change: changeText,
  end: (data) => `${data.status.toLowerCase()}${byUser(data)}${data.message ? `: ${data.message}` : ""}`,
};

const REACT = {
  status: () => again("job", "why", "attempts"),
  epoch: (row) => { takeRow("epochs", row, row.level_by_layer); soonEpochs(); soon(showHead); },
  decision: (view) => {
    takeRow("decisions", view, view.decision.level_by_layer);
    again("schedule");
    [showDecisions, showHead].forEach(soon);
    soonEpochs();
  },
  override: () => again("overrides", "schedule"),
  workers: (data) => {
    if (data.what === "started") takeBack(seen, data);
    again("job", "schedule", "attempts");
    [showHead, showDecisions].forEach(soon);
    soonEpochs();
  },
  checkpoint: () => again("checkpoints"),
  packages: () => again("job"),
  archive: () => again("job"),
  change: () => again("job"),
  end: () => { close(); if (!seen.wasOver) again("job", "rows", "overrides", "why", "attempts", "checkpoints", "loggers"); },
};

function close() {
  closeForm();
  closeResize();
}

let newestEvent = 0;
let newestChunk = 0;
// Streams that have not ended; none is open while the page is hidden.
const streams = new Map([["events", null], ["logs", null]]);
const STREAMS = {
  events: () => followEvents(new EventSource(`${BASE}${PATH}/events?brief=true&${newestEvent ? `after=${newestEvent}` : `last=${PAST_EVENTS}`}`)),
  logs: () => followLogs(new EventSource(`${BASE}${PATH}/logs?follow=true&tail=${MAX_LOG_LINES}`)),
};

function open(name) {
  const source = STREAMS[name]();
  streams.set(name, source);
  source.onopen = () => came(name);
  // Events may follow the end; after them, the service closes the stream of an ended job.
  source.onerror = () => (streams.has(name) ? gone(name, source) : source.close());
  source.addEventListener("end", () => { streams.delete(name); came(name); });
}

// A browser reconnects by itself unless the request was rejected, for example by a proxy.
async function gone(name, source) {
  const waited = lost(name);
  if (source.readyState !== EventSource.CLOSED) return;
  again("job");
  await waited;
  if (streams.get(name) === source) open(name);
}

// Events that are no longer kept: what they would have changed is loaded instead.
function takeGap({ data }) {
  const { from_seq: first, to_seq: last, why } = JSON.parse(data);
  newestEvent = last;
  seen.events.push({ type: "gap", time: null, text: `events ${first} to ${last} are missing: ${why}` });
  soon(showEvents);
  again("job", "rows", "overrides", "schedule");
}

function followEvents(source) {
  source.addEventListener("gap", takeGap);
  source.addEventListener("progress", ({ data }) => { seen.job.progress = JSON.parse(data); soon(showHead); soonWhy(); });
  for (const type of Object.keys(TELL)) {
    source.addEventListener(type, ({ data }) => {
      const event = JSON.parse(data);
      newestEvent = event.seq;
      seen.events.push({ type, time: event.time, text: TELL[type](event.data) });
      takeEvent(seen.changes, { type, time: event.time, data: event.data });
      soon(showEvents);
      soon(showAllChanges);
      REACT[type](event.data);
    });
  }
  return source;
}

function followLogs(source) {
  source.addEventListener("log", ({ data }) => {
    const chunk = JSON.parse(data);
    if (chunk.number <= newestChunk) return;
    newestChunk = chunk.number;
    if (chunk.removed_bytes) seen.lines.push(`… ${bytes(chunk.removed_bytes)} of older output were removed`);
    seen.lines.push(...chunk.lines.map(logLine));
    if (chunk.dropped) seen.lines.push(`… ${chunk.dropped} lines came too fast and were dropped`);
    seen.lines.splice(0, seen.lines.length - MAX_LOG_LINES);
    soon(showLogs);
  });
  return source;
}

const logLine = ({ time, rank, text }) => `${clock(time * 1000)} ${rank === null ? "supervisor" : `rank ${rank}`.padEnd(10)}  ${text}`;

function showLogs() {
  const box = at("logs");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  box.textContent = seen.lines.join("\n");
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// A browser opens at most six streams to one service, so hidden pages close theirs.
function follow() {
  if (!document.hidden) again("wait", "loggers");
  for (const [name, source] of streams) {
    source?.close();
    if (document.hidden) streams.set(name, null);
    else open(name);
  }
}

async function ask(what) {
  await call("POST", `${BASE}${PATH}/${what}`).catch((error) => { at("message").textContent = error.message; });
  again("job");
}

at("cancel").addEventListener("click", () => at("sure").showModal());
at("sure-no").addEventListener("click", () => at("sure").close());
at("sure-yes").addEventListener("click", () => { at("sure").close(); ask("cancel"); });
at("older").addEventListener("click", () => showOlder().catch((error) => { at("message").textContent = error.message; }));
at("pause").addEventListener("click", () => ask("pause"));
// The streams of an ended job are closed, so the page begins anew.
at("retry").addEventListener("click", () => call("POST", `${BASE}${PATH}/retry`)
  .then(() => location.reload(), (error) => { at("message").textContent = error.message; }));
for (const what of ["resume", "archive", "unarchive"]) at(what).addEventListener("click", () => ask(what));
document.addEventListener("visibilitychange", follow);
whenColoursChange(soonEpochs);
addEventListener("resize", soonEpochs);

async function begin() {
  await load.job();
  seen.wasOver = hasEnded(seen.job.status);
  await Promise.all([load.rows(), load.overrides(), load.schedule(), load.why(), load.attempts(), load.checkpoints()]);
}

// The forms work before the first responses arrive.
openForm(ID, () => again("overrides"));
openResize({ id: ID }, () => again("job"));
while (await begin().catch(() => lost("page")));
if (hasEnded(seen.job.status)) close();
follow();
came("page");
