// Changes of worker group and overrides of a job: read from its events, marked in its charts, listed in a table.
import { byUser, cell, clock, counted, element, fill, isHeld, labelled, overrideText } from "./format.js";
import { CAUSES, lost } from "./workers.js";

const at = (id) => document.getElementById(id);

const SIGNS = { resize: "n→m", recovery: "✕", restart: "↻", override: "✎" };
const ABOUT = { resize: "resize", recovery: "recovery after a failure", restart: "new attempt", override: "override" };
const NOUNS = { resize: "resize", recovery: "recovery", restart: "new attempt", override: "override" };

const sizes = (before, size) => (before === size ? `with ${counted(size, "worker")}` : `${before} → ${size} workers`);

const culprit = ({ cause, rank, step }) => {
  const fate = cause === "job" ? "failed" : "lost";
  return `${rank === null ? "workers" : `rank ${rank}`} ${fate}${step === null ? "" : ` at step ${step}`}`;
};

// A change may be announced several times. It is done when a worker group trains again; if its attempt or job ends first, its title is `atEnd`.
function announce(changes, { word, ...news }) {
  const last = changes.at(-1);
  if (last === undefined || last.done) changes.push({ done: false, epoch: null, step: null, words: [word], ...news });
  else {
    if (last.kind === "resize") Object.assign(last, news);
    if (!last.words.includes(word)) last.words.push(word);
  }
}

const DONE = {
  resize: (data) => ({ sign: `${data.previous_world_size}→${data.world_size}`, title: `Resized: ${sizes(data.previous_world_size, data.world_size)}` }),
  recovery: (data) => ({ sign: SIGNS.recovery, title: `Recovered ${sizes(data.previous_world_size, data.world_size)}` }),
};

// An attempt that ended is a change of its own, at another time than the begin of the next one.
function begin(changes, { attempt, world_size: size, epoch, step, seconds_lost: seconds, steps_rolled_back: steps }, time) {
  const ended = changes.at(-1);
  ended.done = true;
  changes.push({
    kind: "restart", done: true, time, sign: SIGNS.restart, epoch, step, seconds, steps, title: `Attempt ${attempt} continues with ${counted(size, "worker")}`,
    words: ended.acts ?? [], before: [ended.title, ...ended.words],
  });
}

const TAKE = {
  resizing: (changes, data, time) => announce(changes, {
    kind: "resize", time, sign: `${data.old}→${data.new}`, title: `Resizing: ${sizes(data.old, data.new)}`,
    atEnd: `Resize ${data.old} → ${data.new} did not take place`, word: CAUSES[data.cause] ?? data.message,
  }),
  failed: (changes, data, time) => announce(changes, {
    kind: "recovery", time, sign: SIGNS.recovery, title: "Workers lost", atEnd: "Workers lost and not replaced",
    word: `${culprit(data)}: ${data.message}`,
  }),
  started: (changes, data, time) => {
    const last = changes.at(-1);
    if (last === undefined || last.done) return;
    if (data.cause === "start") begin(changes, data, time);
    if (!Object.hasOwn(DONE, data.cause)) return;
    const { epoch, step, cause, seconds_lost: seconds, steps_rolled_back: steps } = data;
    Object.assign(last, { kind: cause, done: true, epoch, step, seconds, steps }, DONE[cause](data));
  },
};

// The message of a status tells what to do next, which is over once the list is read.
const ACTS = { PAUSED_BY_USER: "paused", RESUMED: "resumed", RETRIED: "retried" };
const act = (data) => `${ACTS[data.reason] ?? data.message}${byUser(data)}`;

// Takes that an attempt ended, or what a user asked for before the next one.
function hold(changes, data, time) {
  const last = changes.at(-1);
  const open = last !== undefined && !last.done;
  if (open && last.kind === "restart") {
    if (data.by) last.acts = [...new Set([...(last.acts ?? []), act(data)])];
    return;
  }
  if (open) Object.assign(last, { done: true, title: last.atEnd });
  const title = `Attempt ${data.attempt} ended`;
  announce(changes, { kind: "restart", time, sign: SIGNS.restart, title, atEnd: title, word: data.reason === "PAUSED_BY_USER" ? act(data) : data.message });
}

// Adds one event of the job.
export function takeEvent(changes, { type, time, data }) {
  const last = changes.at(-1);
  if (type === "workers" && Object.hasOwn(TAKE, data.what)) TAKE[data.what](changes, data, time);
  else if (type === "end" && last !== undefined && !last.done) Object.assign(last, { done: true, title: last.atEnd });
  else if (type === "status" && data.attempt > 0 && isHeld(data.status)) hold(changes, data, time);
}

const byHand = (row) => ({
  kind: "override", done: true, time: row.applied_at, sign: SIGNS.override, epoch: row.epoch, step: row.step, id: row.id,
  title: `Override ${row.number}: ${overrideText(row)}`,
  words: [row.reason, row.requested_by && `by ${row.requested_by}`].filter(Boolean),
});

// All changes, oldest first; an override counts from the time at which the workers applied it.
export function allChanges(changes, overrides) {
  const applied = overrides.filter((row) => row.epoch !== null && row.applied_at !== null).map(byHand);
  return [...changes, ...applied].sort((a, b) => Date.parse(a.time) - Date.parse(b.time));
}

// A new attempt costs something if the one before it was lost.
const costs = ({ kind, seconds }) => ["resize", "recovery"].includes(kind) || (kind === "restart" && seconds > 0);
const cost = (change) => (costs(change) && change.epoch !== null ? lost(change.steps, change.seconds) : "");

// Lines of a mark's tooltip.
export const wordsOf = (change) => [...(change.before ?? []), change.title, ...change.words, `epoch ${change.epoch}, step ${change.step}`, cost(change)].filter(Boolean);

export function summary(changes) {
  const marked = changes.filter((change) => change.epoch !== null);
  const counts = Object.entries(NOUNS).map(([kind, noun]) => [marked.filter((change) => change.kind === kind).length, noun]).filter(([count]) => count);
  return counts.length ? ` Marked: ${counts.map(([count, noun]) => counted(count, noun)).join(", ")}; see the table of changes.` : "";
}

const badge = (kind, text) => element("span", { className: `mark ${kind}`, "aria-hidden": "true" }, text);

function row(change) {
  const [steps, seconds] = cost(change) ? [String(change.steps), `${change.seconds.toFixed(1)} s`] : ["–", "–"];
  return element("tr", { "data-kind": change.kind },
    cell("name", badge(change.kind, change.sign), change.title), cell("long", change.words.join("; then ") || "–"),
    labelled("Epoch, step", change.epoch === null ? "–" : `${change.epoch}, ${change.step}`), labelled("Steps repeated", steps), labelled("Time lost", seconds),
    labelled("Time", clock(change.time)));
}

export function showChanges(changes) {
  const none = element("tr", {}, element("td", { className: "quiet", colSpan: 6 }, "None so far."));
  fill(at("changes"), ...(changes.length ? [...changes].reverse().map(row) : [none]));
  showLegend(changes);
}

// Explains the marks of the charts.
export function showLegend(changes) {
  const kinds = Object.keys(ABOUT).filter((kind) => changes.some((change) => change.kind === kind && change.epoch !== null));
  at("marks").hidden = kinds.length === 0;
  fill(at("marks"), "Marks in the charts:", ...kinds.map((kind) => element("span", {}, badge(kind, SIGNS[kind]), ` ${ABOUT[kind]}`)),
    element("a", { href: "#changes-title" }, "all changes"));
}
