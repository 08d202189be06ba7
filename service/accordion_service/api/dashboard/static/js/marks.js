// Positions and drawing of a job's changes in its charts.
import { summary, wordsOf } from "./changes.js";
import { safe } from "./format.js";

const COLOURS = { resize: "text", recovery: "bad", restart: "wait", override: "series-4", several: "text" };
const DASHES = { resize: "dash", recovery: "solid", restart: "dashdot", override: "dot" };
const LETTER_PX = 7;
const PADDING_PX = 10;
const MARGINS_PX = 64;
const WORDS_A_LINE = 44;
const MAX_LINES = 12;
const MAX_LENGTH = 300;

// Epoch e covers e - 0.5 to e + 0.5 of a chart; the last steps of the epochs place a step within it. Epochs may be left out.
function placing(epochs) {
  const ends = new Map([[-1, 0], ...epochs.map((row) => [row.epoch, row.step])]);
  const last = epochs.at(-1);
  const usual = last ? last.step - (ends.get(last.epoch - 1) ?? (last.step * last.epoch) / (last.epoch + 1)) : 0;
  return (epoch, step) => {
    const begin = ends.get(epoch - 1) ?? (ends.get(epoch) ?? step + usual / 2) - usual;
    const length = (ends.get(epoch) ?? begin + usual) - begin;
    return epoch - 0.5 + Math.min(1, Math.max(0, length > 0 ? (step - begin) / length : 0));
  };
}

const inForce = ({ decision }, id) => [decision.batch_override, decision.local_steps_override, ...Object.values(decision.optimizer_overrides ?? {}), ...Object.values(decision.override_by_layer)].includes(id);

// Intervals in which each override was in force, from the decisions.
function spans(changes, decisions, place, end) {
  const found = [];
  for (const { id } of changes.filter((change) => change.kind === "override")) {
    let x0;
    for (const view of decisions) {
      const holds = inForce(view, id);
      const x = place(view.decision.epoch, view.decision.step);
      if (holds) x0 ??= x;
      else if (x0 !== undefined) { found.push({ x0, x1: x }); x0 = undefined; }
    }
    if (x0 !== undefined) found.push({ x0, x1: Math.max(x0, end) });
  }
  return found;
}

export function marksOf({ changes, decisions, epochs }) {
  const place = placing(epochs);
  const known = changes.filter((change) => change.epoch !== null)
    .map((change) => ({ ...change, x: place(change.epoch, change.step), words: wordsOf(change) }))
    .sort((a, b) => a.x - b.x);
  return { marks: known, spans: spans(changes, decisions, place, (epochs.at(-1)?.epoch ?? -1) + 0.5), said: summary(changes) };
}

function wrapped(text) {
  const lines = [""];
  for (const word of (text.length > MAX_LENGTH ? `${text.slice(0, MAX_LENGTH)}…` : text).split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= WORDS_A_LINE) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines.map(safe);
}

const told = (mark) => mark.words.flatMap((text, index) => (index ? wrapped(text) : wrapped(text).map((line) => `<b>${line}</b>`)));

function cut(lines) {
  return lines.length > MAX_LINES ? [...lines.slice(0, MAX_LINES), "… see the table of changes"] : lines;
}

const width = (text) => text.length * LETTER_PX + PADDING_PX;

// Signs that would overlap are merged into one with their number.
function groups(marks, perPx) {
  const found = [];
  for (const mark of marks) {
    const last = found.at(-1);
    if (last && (mark.x - last.x) / perPx < (width(last.text) + width(mark.sign)) / 2) {
      last.marks.push(mark);
      last.text = `${last.marks.length}×`;
    } else found.push({ x: mark.x, text: mark.sign, marks: [mark] });
  }
  return found;
}

const sign = (group, colour) => {
  const kinds = new Set(group.marks.map((mark) => mark.kind));
  const own = colour(COLOURS[kinds.size === 1 ? [...kinds][0] : "several"]);
  return {
    x: group.x, xref: "x", y: 0, yref: "paper", yanchor: "top", xanchor: "center", yshift: -1, showarrow: false, text: group.text,
    font: { size: 11, color: own }, bgcolor: colour("card"), bordercolor: own, borderwidth: 1, borderpad: 1,
    hovertext: cut(group.marks.flatMap(told)).join("<br>"), captureevents: true,
    hoverlabel: { bgcolor: colour("card"), bordercolor: own, font: { color: colour("text"), size: 12 } },
  };
};

const rule = (mark, stroke) => ({ type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: 0, y1: 1, layer: "above", line: stroke });

// Shapes and annotations of a chart; `halo` keeps lines visible on the cells of a map.
export function drawn({ marks, spans: held }, { node, range, colour, halo = false, shaded = true }) {
  const perPx = (range[1] - range[0]) / Math.max(1, node.clientWidth - MARGINS_PX);
  const shade = shaded ? held.map(({ x0, x1 }) => ({
    type: "rect", xref: "x", yref: "paper", layer: "below", line: { width: 0 }, fillcolor: colour("series-4"), opacity: 0.13, x0, x1, y0: 0, y1: 1,
  })) : [];
  const halos = halo ? marks.map((mark) => rule(mark, { color: colour("card"), width: 4 })) : [];
  const rules = marks.map((mark) => rule(mark, { color: colour(COLOURS[mark.kind]), width: 1.5, dash: DASHES[mark.kind] }));
  return { shapes: [...shade, ...halos, ...rules], annotations: groups(marks, perPx).map((group) => sign(group, colour)) };
}
