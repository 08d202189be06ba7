// The workers of a job: limits, compute time by rank, and the cost of changes.
import { BASE, call } from "./api.js";
import { byUser, cell, counted, element, fill, hasEnded, isGuest, number } from "./format.js";

const at = (id) => document.getElementById(id);
export const CAUSES = { ordered: "allocation changed", joined: "workers joined", leaving: "node drained", infrastructure: "workers lost", job: "the job failed" };

const request = () => ({ min: Number(at("least").value), max: Number(at("most").value) });

const path = (job) => `${BASE}/jobs/${job.id}/resize`;

const refresh = (job) => { at("resize-call").textContent = `POST ${path(job)}\n${JSON.stringify(request())}`; };

function say(tone, text) {
  const said = at("resize-said");
  said.hidden = false;
  said.className = `said ${tone}`;
  said.textContent = text;
}

// A value that the user has typed, possibly before this script ran, is kept when the limits change.
const follow = (field, allowed) => {
  if (field.value === field.defaultValue) field.value = field.defaultValue = String(allowed);
};

export function openResize(job, changed) {
  const form = at("resize");
  form.addEventListener("input", () => refresh(job));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      await call("POST", path(job), request());
      for (const field of [at("least"), at("most")]) field.defaultValue = field.value;
      say("good", "Accepted. The events show when the number of workers changes.");
      changed();
    } catch (error) {
      say("bad", error.message);
    } finally {
      button.disabled = false;
    }
  });
  form.querySelector("button").disabled = false;
  refresh(job);
}

export const closeResize = () => { at("resize").hidden = true; };

export function showWorkers(job) {
  follow(at("least"), job.min_workers);
  follow(at("most"), job.max_workers);
  refresh(job);
  const training = hasEnded(job.status) ? "none, it has ended" : `${job.world_size} training`;
  const allocated = hasEnded(job.status) ? "" : `, ${job.workers} allocated`;
  at("workers-note").textContent = isGuest(job) ? training : `${training}${allocated}, ${job.min_workers} to ${job.max_workers} allowed`;
  at("tally").textContent = cost(job.tally, job.attempt);
  const seconds = job.world_size ? job.progress?.compute_s_by_rank ?? [] : [];
  const slowest = Math.max(...seconds, 0);
  const shares = job.progress?.micro_batches_by_rank ?? [];
  fill(at("ranks"), ...seconds.map((own, rank) => rankRow(rank, own, slowest, shares[rank])));
}

const rankRow = (rank, own, slowest, share) => element("tr", {},
  cell("num", String(rank)), cell("num", share === undefined ? "unknown" : String(share)),
  cell("num", `${number(1000 * own)} ms`),
  cell("", element("meter", { min: 0, max: slowest || 1, value: own, "aria-label": `Rank ${rank} relative to the slowest` })));

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);

function cost(tally, attempt) {
  const [resizes, recoveries] = [sum(tally.resizes), sum(tally.recoveries)];
  if (resizes + recoveries === 0) return attempt > 1 ? `Attempt ${attempt}; no change of workers within an attempt.` : "No change of workers so far.";
  return `${counted(resizes, "resize")}, ${counted(recoveries, "recovery")}; ${lost(tally.steps_rolled_back, tally.seconds_lost)} in total`;
}

export const lost = (steps, seconds) => `${counted(steps, "step")} rolled back, ${seconds.toFixed(1)} s lost`;

const TELL = {
  started: ({ cause, why, previous_world_size: before, world_size: size, ...data }) => (cause === "start"
    ? `${counted(size, "worker")} training from epoch ${data.epoch}, step ${data.step}`
    : `${before} → ${size} workers: ${CAUSES[why] ?? why}, ${lost(data.steps_rolled_back, data.seconds_lost)}`),
  resizing: (data) => `at the next step: ${data.message}`,
  granted: (data) => `${data.old} → ${data.new} workers allocated: ${data.message}`,
  allowed: (data) => `${data.min} to ${data.max} workers allowed${byUser(data)}`,
  failed: ({ message }) => `workers failed: ${message}`,
};

export const tellWorkers = (data) => TELL[data.what](data);
