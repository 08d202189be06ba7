// The charts of a job's page, drawn by Plotly from the epochs and decisions; x is always the epoch, counted from 0.
/* global Plotly */
import { bytes, isAccuracy, measured, metric, number, safe } from "./format.js";
import { drawn } from "./marks.js";

const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
const LEVEL_CODES = { none: 0, half: 1, low: 2, high: 3 };
const OTHER_LEVEL = 4;
const MAX_LINES = 6;
const FEW_EPOCHS = 12;
const ROW_PX = 26;
const MAP_PX = 600;
const NAME_PX = 14;
const GAP_PX = 12;
const SIGNS_PX = 20;
const BAR_PART = 0.85;
const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
const NUM_COLOURS = 9;
const AREA_ALPHA = "30";
const ON_AREAS = { halo: true, shaded: false };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function layout(extra = {}) {
  const axis = { gridcolor: colour("line"), zeroline: false, linecolor: colour("line"), automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, DejaVu Sans, sans-serif", size: 12, color: colour("quiet") },
    margin: { l: 52, r: 12, t: 26, b: 36 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    legend: LEGEND,
    showlegend: true,
    ...extra,
    xaxis: { ...axis, title: { text: "epoch", standoff: 6 }, tickformat: "d", ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
    yaxis2: { ...axis, overlaying: "y", side: "right", showgrid: false, tickmode: "auto" },
  };
}

// Names of metrics and layers are texts of users.
const safeText = (value) => (typeof value === "string" ? safe(value) : value);
const safely = (trace) => ({ ...trace, name: safeText(trace.name), y: trace.y.map(safeText) });

function draw(id, traces, extra, said, marked, style) {
  const node = document.getElementById(id);
  const caption = document.getElementById(`${id}-said`);
  const text = said + marked.said;
  if (caption.textContent !== text) caption.textContent = text;
  const xs = [...traces.flatMap((trace) => trace.x), ...marked.marks.map((mark) => mark.x)];
  const range = extra.xaxis?.range ?? [Math.min(0, ...xs), Math.max(1, ...xs)];
  const xaxis = range[1] < FEW_EPOCHS ? { dtick: 1, ...extra.xaxis } : extra.xaxis;
  const own = layout({ ...extra, xaxis, ...drawn(marked, { node, range, colour, ...style }) });
  if (marked.marks.length) own.xaxis.ticklabelstandoff = SIGNS_PX;
  Plotly.react(node, traces.map(safely), own, CONFIG);
}

const line = (name, epochs, pick, series, more = {}) => ({
  name, type: "scatter", mode: epochs.length > 60 ? "lines" : "lines+markers",
  x: epochs.map((row) => row.epoch), y: epochs.map(pick),
  line: { color: colour(`series-${series}`), width: 2.2, ...more.line }, marker: { size: 4.5 },
  hovertemplate: "%{y:.4~g}", connectgaps: false,
});

// A line joins the evaluated epochs, and has a gap where an evaluation gave no finite value.
const evaluated = (epochs) => epochs.filter(({ metrics }) => Object.keys(metrics).length);

const newest = (epochs, pick) => epochs.map(pick).filter(Number.isFinite).at(-1);

const LABELS = { compute: "compute", communicate: "communicate", optimize: "optimize", evaluate: "evaluate", checkpoint: "checkpoint", decide: "decide", wait: "wait", load: "load", encode: "encode" };

export function drawLines({ epochs, marked }) {
  const evalLoss = (row) => row.metrics.loss ?? null;
  draw("loss", [line("training", epochs, (row) => row.loss, 1), line("evaluation", evaluated(epochs), evalLoss, 2)],
    { yaxis: { rangemode: "tozero" } },
    `Newest training loss ${number(newest(epochs, (row) => row.loss), 4)}, evaluation loss ${number(newest(epochs, evalLoss), 4)}.`, marked);
  drawMetrics({ epochs, marked });
  const rounds = epochs.some((row) => row.local_steps > 1)
    ? [{ ...line("local steps (right)", epochs, (row) => row.local_steps, 1, { line: { shape: "hv", dash: "dot" } }), yaxis: "y2" }] : [];
  const now = rounds.length ? ` Newest number of local steps ${newest(epochs, (row) => row.local_steps)}.` : "";
  draw("rate", [line("learning rate", epochs, (row) => row.lr, 4, { line: { shape: "hv" } }), ...rounds],
    { showlegend: rounds.length > 0, yaxis: { rangemode: "tozero" } }, `Newest learning rate ${number(newest(epochs, (row) => row.lr))}.${now}`, marked);
}

// Fractions and larger numbers need different axes: metrics of the first one's kind use the left, the others the right.
function drawMetrics({ epochs, marked }) {
  const names = measured(epochs);
  const of = (name) => (row) => row.metrics[name] ?? null;
  const isPart = (name) => epochs.map(of(name)).every((value) => Math.abs(value) <= 1);
  const isLeft = (name) => isPart(name) === isPart(names[0]);
  const lines = names.map((name, index) => {
    const side = isLeft(name) ? { name } : { name: `${name} (right)`, yaxis: "y2" };
    return { ...line(name, evaluated(epochs), of(name), 3 + index % 4), ...side };
  });
  draw("metrics", lines, { yaxis: names.filter(isLeft).every((name) => isAccuracy(name) && isPart(name)) ? { tickformat: ".0%" } : {} },
    names.map((name) => `Newest ${name} ${metric(name, newest(epochs, of(name)))}.`).join(" "), marked);
}

export function drawWorkers({ epochs, marked }) {
  draw("workers", [line("workers", epochs, (row) => row.world_size, 1, { line: { shape: "hv" } })],
    { showlegend: false, yaxis: { rangemode: "tozero", tickformat: "d", dtick: Math.max(...epochs.map((row) => row.world_size)) > 8 ? undefined : 1 } }, `Workers at the end of the newest epoch: ${newest(epochs, (row) => row.world_size)}.`, marked);
}

export function drawTraffic({ epochs, marked }) {
  const kind = (name, count, series, more) => ({ ...line(name, epochs, (row) => count(row.bytes), series, more), hovertemplate: "%{y:.3s}B" });
  draw("traffic", [
    kind("uncompressed", (sent) => sent.dense_wire, 6, { line: { dash: "dot" } }),
    kind("in fp16", (sent) => sent.dense_wire / 2, 5, { line: { dash: "dash" } }),
    kind("sent", (sent) => sent.wire, 1, { line: { width: 3 } }),
    kind("of it control", (sent) => sent.control_wire, 3, { line: { width: 1 } }),
  ], { yaxis: { type: "log", dtick: 1, ticksuffix: "B", tickformat: "~s" } },
  `In the newest epoch each worker sent ${bytes(newest(epochs, (row) => row.bytes.wire))}, uncompressed ${bytes(newest(epochs, (row) => row.bytes.dense_wire))}.`, marked);
}

// A bar of a thinned history also covers the epochs before it that are left out.
function bars(epochs) {
  const gaps = epochs.map(({ epoch }, index) => epoch - (epochs[index - 1]?.epoch ?? epoch - 1));
  if (gaps.every((gap) => gap === 1)) return {};
  return { width: gaps.map((gap) => gap * BAR_PART), offset: gaps.map((gap) => BAR_PART / 2 - gap * BAR_PART) };
}

export function drawPhases({ epochs, marked }) {
  const phases = Object.keys(LABELS).filter((phase) => epochs.some((row) => row.seconds_by_phase[phase] > 0));
  const traces = phases.map((phase) => ({
    name: LABELS[phase], type: "bar", x: epochs.map((row) => row.epoch), ...bars(epochs),
    y: epochs.map((row) => row.seconds_by_phase[phase] ?? 0), hovertemplate: "%{y:.3f} s",
    marker: { color: colour(`series-${Object.keys(LABELS).indexOf(phase) + 1}`) },
  }));
  draw("phases", traces, { barmode: "stack", bargap: 1 - BAR_PART, legend: { ...LEGEND, traceorder: "normal" }, yaxis: { ticksuffix: " s" } },
    phases.map((phase) => `${LABELS[phase]} ${number(newest(epochs, (row) => row.seconds_by_phase[phase] ?? 0))} s`).join(", "), marked, ON_AREAS);
}

// The statistic that the detector compares: one line per layer, or the largest of all if there are many.
export function drawChanges({ decisions, layers, threshold, epochs, marked }) {
  const compared = decisions.filter(({ decision }) => Object.values(decision.change_by_layer).some(Number.isFinite));
  const x = compared.map(({ decision }) => decision.epoch);
  const largest = ({ decision }) => Math.max(...Object.values(decision.change_by_layer).filter(Number.isFinite));
  const trace = (name, y, series) => ({
    name, x, y, type: "scatter", mode: "lines+markers", line: { color: colour(`series-${series}`), width: 2 }, marker: { size: 4.5 }, hovertemplate: "%{y:.3~g}",
  });
  const lines = layers.length <= MAX_LINES
    ? layers.map((layer, index) => trace(layer, compared.map(({ decision }) => decision.change_by_layer[layer]), index + 1))
    : [trace("largest of all layers", compared.map(largest), 1)];
  const isKnown = Number.isFinite(threshold);
  const limit = { name: `threshold ${threshold}`, x: [epochs[0].epoch, Math.max(1, epochs.at(-1).epoch + 1)], y: [threshold, threshold], type: "scatter", mode: "lines",
    line: { color: colour("bad"), dash: "dash", width: 1.5 }, hoverinfo: "skip" };
  const values = [threshold, ...lines.flatMap((one) => one.y)].filter((value) => value > 0);
  const agreement = newest(epochs, (row) => row.agreement);
  const agreed = Number.isFinite(agreement) ? ` Newest agreement of the workers ${number(agreement)}.` : "";
  const decades = Math.log10(Math.max(...values) / Math.min(...values));
  draw("change", isKnown ? [...lines, limit] : lines, { yaxis: { type: "log", exponentformat: "power", dtick: decades > 1.5 ? Math.ceil(decades / 6) : undefined } },
    compared.length ? `Largest change at the newest comparison: ${number(largest(compared.at(-1)))}${isKnown ? `, threshold ${threshold}` : ""}.${agreed}` : `Nothing was compared yet.${agreed}`, marked);
}

// Decision in force at the end of each epoch.
function decisionsByEpoch(epochs, decisions) {
  const ordered = [...decisions].sort((a, b) => a.decision.epoch - b.decision.epoch || a.decision.step - b.decision.step);
  return epochs.map((row) => ordered.filter((view) => view.decision.epoch <= row.epoch && view.decision.step <= row.step).at(-1)?.decision);
}

// Many layers share a map's height, and only some of them are named.
const rowPx = (layers) => Math.max(1, Math.min(ROW_PX, MAP_PX / layers.length));

function heat(layers, epochs, values, texts, bands) {
  const steps = bands.flatMap((band, index) => [[index / bands.length, band], [(index + 1) / bands.length, band]]);
  return {
    type: "heatmap", x: epochs.map((row) => row.epoch), y: layers, z: values, text: texts, hoverinfo: "text",
    colorscale: steps, zmin: -0.5, zmax: bands.length - 0.5, showscale: false,
    xgap: epochs.length > 150 ? 0 : 2, ygap: rowPx(layers) < GAP_PX ? 0 : 2,
  };
}

function mapLayout(layers, epochs, { marks }) {
  const height = 78 + layers.length * rowPx(layers) + (marks.length ? SIGNS_PX : 0);
  return {
    height, showlegend: false, hovermode: "closest", margin: { l: 60, r: 12, t: 6, b: 40 },
    xaxis: { showgrid: false, range: [epochs[0].epoch - 0.5, Math.max(epochs.at(-1).epoch + 0.5, ...marks.map((mark) => mark.x + 0.1))] },
    yaxis: { autorange: "reversed", showgrid: false, type: "category", dtick: Math.ceil(NAME_PX / rowPx(layers)), ticks: "", tickfont: { family: "monospace" } },
  };
}

export function drawMaps({ epochs, decisions, layers, marked }) {
  const inForce = decisionsByEpoch(epochs, decisions);
  const grid = (pick) => layers.map((layer) => epochs.map((row, index) => pick(layer, row, inForce[index])));
  const tell = (layer, row, decision) => {
    const level = row.level_by_layer[layer];
    const change = decision?.change_by_layer[layer];
    const by = decision?.override_by_layer[layer] ? " by override" : "";
    const moved = Number.isFinite(change) ? `<br>change ${change.toFixed(3)}` : "";
    return `${safe(layer)}, epoch ${row.epoch}<br>${row.regime_by_layer[layer] ?? "no regime"}, level ${safe(level ?? "dense")}${by}${moved}`;
  };
  const texts = grid(tell);
  const regime = (layer, row) => ({ stable: 0, critical: 1 })[row.regime_by_layer[layer]] ?? null;
  const code = (name) => (name === undefined ? null : LEVEL_CODES[name] ?? OTHER_LEVEL);
  const critical = layers.filter((layer) => epochs.at(-1)?.regime_by_layer[layer] === "critical");
  draw("regimes", [heat(layers, epochs, grid(regime), texts, [colour("stable"), colour("critical")])], mapLayout(layers, epochs, marked),
    `Critical in the newest epoch: ${critical.join(", ") || "no layer"}.`, marked, ON_AREAS);
  const bands = ["level-none", "level-half", "level-low", "level-high", "level-other"].map(colour);
  draw("levels", [
    heat(layers, epochs, grid((layer, row) => code(row.level_by_layer[layer])), texts, bands),
    byHand(layers, epochs, inForce),
  ], mapLayout(layers, epochs, marked), `Levels of the newest epoch: ${layers.map((layer) => `${layer} ${epochs.at(-1)?.level_by_layer[layer] ?? "dense"}`).join(", ")}.`, marked, ON_AREAS);
}

function byHand(layers, epochs, inForce) {
  const cells = epochs.flatMap((row, index) => layers
    .filter((layer) => inForce[index]?.override_by_layer[layer])
    .map((layer) => [row.epoch, layer]));
  return {
    type: "scatter", mode: "markers", x: cells.map(([epoch]) => epoch), y: cells.map(([, layer]) => layer), hoverinfo: "skip",
    marker: { symbol: "diamond", size: 7, color: colour("card"), line: { color: colour("text"), width: 1.2 } },
  };
}

// A line joins the means of each group of runs; the area around it is the interval of the mean.
export function drawGroups(id, groups, { format, ...extra }) {
  const traces = groups.flatMap(({ name, epochs }, index) => {
    const rows = epochs.filter((row) => Number.isFinite(row[id]));
    const series = 1 + index % NUM_COLOURS;
    const spread = rows.filter((row) => Number.isFinite(row[`${id}_half`]));
    const edge = (sign, more) => ({
      ...line(name, spread, (row) => row[id] + sign * row[`${id}_half`], series, { line: { width: 0 } }),
      mode: "lines", showlegend: false, hoverinfo: "skip", hovertemplate: null, ...more,
    });
    const area = { fill: "tonexty", fillcolor: `${colour(`series-${series}`)}${AREA_ALPHA}` };
    return [...(spread.length ? [edge(-1), edge(1, area)] : []), line(name, rows, (row) => row[id], series)];
  });
  const legend = { ...LEGEND, traceorder: "normal" };
  draw(id, traces, { legend, ...extra }, groups.map(({ name, epochs }) => `Newest of ${name}: ${format(newest(epochs, (row) => row[id]))}.`).join(" "), { marks: [], spans: [], said: "" });
}

export const whenColoursChange = (redraw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
