// The charts of a report, drawn from the data in its own page.
import { allChanges, showLegend, takeEvent } from "./changes.js";
import { drawChanges, drawLines, drawMaps, drawPhases, drawTraffic, drawWorkers, whenColoursChange } from "./charts.js";
import { marksOf } from "./marks.js";

const { epochs, decisions, layers, threshold, overrides, events } = JSON.parse(document.getElementById("report-data").textContent);
const taken = [];
for (const event of events) takeEvent(taken, event);
const changes = allChanges(taken, overrides);
const history = { epochs, decisions, layers };
const view = { ...history, marked: marksOf({ ...history, changes }) };

function draw() {
  drawLines(view);
  drawTraffic(view);
  drawPhases(view);
  drawChanges({ ...view, threshold });
  drawWorkers(view);
  drawMaps(view);
}

showLegend(changes);
draw();
whenColoursChange(draw);
addEventListener("resize", draw);
