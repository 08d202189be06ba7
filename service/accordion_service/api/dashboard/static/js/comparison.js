// The charts of a report of several groups of runs, drawn from the data in its own page.
import { drawGroups, whenColoursChange } from "./charts.js";
import { bytes, isAccuracy, metric, number } from "./format.js";

const { groups, metric_name: name } = JSON.parse(document.getElementById("report-data").textContent);
const isShare = isAccuracy(name) && groups.every(({ epochs }) => epochs.every((row) => !(row.metric > 1)));
const OPTIONS = {
  wire: { format: bytes, yaxis: { type: "log", dtick: 1, ticksuffix: "B", tickformat: "~s" } },
  metric: { format: (value) => metric(name, value), yaxis: isShare ? { tickformat: ".0%" } : {} },
  agreement: { format: number },
};
const OTHERS = { format: number, yaxis: { rangemode: "tozero" } };

function draw() {
  for (const { id } of document.querySelectorAll(".chart")) drawGroups(id, groups, OPTIONS[id] ?? OTHERS);
}

draw();
whenColoursChange(draw);
addEventListener("resize", draw);
