// What holds the job up: the answer in a sentence, the best change, and the parts of a step.
import { cell, element, fill, number } from "./format.js";

const at = (id) => document.getElementById(id);

const percent = (value) => `${Math.round(100 * value)} %`;

const factor = ({ speedup, is_upper_bound: isBound }) => `${isBound ? "up to " : ""}${number(speedup, 2)} times as many samples per second`;

const partRow = ([name, seconds], whole) => element("tr", {},
  cell("", name), cell("num", `${number(1000 * seconds)} ms`), cell("num", percent(seconds / whole)),
  cell("", element("meter", { min: 0, max: whole, value: seconds, "aria-label": `${name}: share of a step` })));

// Predictions of the last decision, and what was measured before it.
function waitsText(waits, measured) {
  const predicted = Object.entries(waits).sort(([, a], [, b]) => a - b).map(([level, seconds]) => `${level} ${number(1000 * seconds)} ms`);
  const then = measured === null ? "" : `; measured before: ${number(1000 * measured)} ms`;
  return `Predicted wait for exchanges by level: ${predicted.join(", ")}${then}.`;
}

export function showWhy({ sentence, change, step_s: whole, seconds_by_cause: seconds, wait_s_by_level: waits, exchange_wait_s: measured }) {
  at("why-sentence").textContent = sentence;
  at("why-change").hidden = !change;
  at("why-change").textContent = change ? `${change.text}: ${factor(change)}.` : "";
  at("why-waits").hidden = Object.keys(waits).length === 0;
  at("why-waits").textContent = waitsText(waits, measured);
  const parts = Object.entries(seconds).filter(([, value]) => value > 0).sort(([, a], [, b]) => b - a);
  at("why-parts").hidden = parts.length === 0;
  const names = JSON.parse(at("why-parts").dataset.names);
  fill(at("parts"), ...parts.map(([cause, value]) => partRow([names[cause], value], whole)));
}
