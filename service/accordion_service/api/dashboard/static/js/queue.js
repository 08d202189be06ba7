// The queue: which jobs a waiting job waits for, and what would help.
import { get } from "./api.js";
import { element, fill, UNHELD } from "./format.js";

// The service explains every waiting job for each request, so it is asked less often than for the rest.
export const QUEUE_MS = 10000;
const SHOWN_JOBS = 3;
const SHOWN_ID = 13;
const at = (id) => document.getElementById(id);

// Names of jobs by ID; null for those that the viewer may not see, so that the service is not asked for them again.
const nameById = new Map();

async function readNames(items) {
  for (const { id, name } of items) nameById.set(id, name);
  const unknown = items.flatMap((entry) => entry.waits_for).filter((id) => !nameById.has(id));
  if (unknown.length === 0) return nameById;
  const { items: jobs } = await get(`/jobs?limit=200&${UNHELD.map((status) => `status=${status}`).join("&")}`);
  for (const { id, name } of jobs) nameById.set(id, name);
  for (const id of unknown) nameById.set(id, nameById.get(id) ?? null);
  return nameById;
}

export async function readQueue() {
  const { items } = await get("/queue");
  return { items, names: await readNames(items) };
}

const named = (id, names) => (names.get(id) ? element("a", { href: `/jobs/${id}` }, names.get(id)) : element("span", { className: "mono", title: id }, id.slice(0, SHOWN_ID)));

// Links to the jobs that an entry waits for; more than a few are counted.
export function waitsFor({ waits_for: ids }, names) {
  const more = ids.length - SHOWN_JOBS;
  const links = ids.slice(0, SHOWN_JOBS).flatMap((id, place) => [place ? ", " : "", named(id, names)]);
  return [...links, more > 0 ? ` and ${more} more` : ""];
}

export const reasonText = (entry) => [entry.message, entry.autoscaler].filter(Boolean).join("; ");

// Shows why a job waits, in place of what holds up its training, as long as it has an entry in the queue.
export function showWait(entry, { items, names }) {
  at("wait").hidden = entry === undefined;
  at("why").hidden = entry !== undefined;
  if (entry === undefined) return;
  const isScheduled = ({ reason }) => reason === "SCHEDULED";
  const queued = items.filter((item) => !isScheduled(item)).length;
  at("wait-place").textContent = isScheduled(entry) ? "not in the queue yet" : `position ${entry.position} of ${queued} in the queue`;
  at("wait-why").textContent = reasonText(entry);
  at("wait-for").hidden = entry.waits_for.length === 0;
  fill(at("wait-for"), "Waits for ", ...waitsFor(entry, names));
  at("wait-help-title").hidden = entry.remedies.length === 0;
  fill(at("wait-help"), ...entry.remedies.map((remedy) => element("li", {}, remedy)));
}
