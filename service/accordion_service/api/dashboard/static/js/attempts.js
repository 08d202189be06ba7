// Attempts of a job, and the checkpoints that are on its storage.
import { BASE } from "./api.js";
import { bytes, cell, element, fill, labelled, moment, number } from "./format.js";

const at = (id) => document.getElementById(id);

const none = (columns, text) => element("tr", {}, element("td", { className: "quiet", colSpan: columns }, text));

const state = (attempt) => (attempt.ended_at ? "ended" : attempt.started_at ? "training" : "starting");

const attemptRow = (attempt) => element("tr", {},
  labelled("Attempt", String(attempt.number)), cell("", state(attempt)), labelled("Began", moment(attempt.created_at)),
  labelled("Ended", attempt.ended_at ? moment(attempt.ended_at) : "–"), labelled("Workers", String(attempt.workers)),
  cell("long", attempt.message || attempt.reason.toLowerCase().replaceAll("_", " ")));

export function showAttempts(attempts) {
  fill(at("attempts"), ...(attempts.length ? [...attempts].reverse().map(attemptRow) : [none(6, "None so far.")]));
}

const model = (job, checkpoint) => `${BASE}/jobs/${job}/model?checkpoint=${encodeURIComponent(checkpoint)}`;

const badge = (text) => element("span", { className: "pill good" }, text);

const checkpointRow = (job, one) => element("tr", {},
  cell("long mono broken", one.name, " ", one.newest && badge("Newest"), " ", one.best && badge("Best")),
  labelled("Resumes at epoch", String(one.epoch)), labelled("Step", String(one.step)), labelled("Size", bytes(one.size_bytes)),
  labelled("Objective", number(one.objective, 4)), labelled("Saved", moment(one.time)),
  cell("num", element("a", { href: model(job, one.name), download: "", "aria-label": `Download the model of ${one.name}` }, "Download")));

// Checkpoints arrive oldest first.
export function showCheckpoints(job, checkpoints) {
  at("model-newest").hidden = checkpoints.length === 0;
  at("model-best").hidden = !checkpoints.some((one) => one.best);
  fill(at("checkpoints"), ...(checkpoints.length ? [...checkpoints].reverse().map((one) => checkpointRow(job, one)) : [none(7, "None so far.")]));
}
