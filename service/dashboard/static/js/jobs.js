import { updateEvery, get } from "./api.js";
import { ago, barTone, cell, counted, duration, element, epochsDone, fill, hasEnded, isActive, isGuest, labelled, number, otherUser, quality, statusPill, tile, times, usedByOthers, words } from "./format.js";

const PAGE_SIZE = 50;
const at = (id) => document.getElementById(id);
let shown = PAGE_SIZE;

function row(job) {
  const progress = job.progress;
  const saved = progress ? times(progress.bytes.payload, progress.bytes.dense) : "–";
  return element("tr", {},
    cell("name", element("a", { href: `/jobs/${job.id}` }, job.name), element("div", { className: "quiet small" }, about(job))),
    cell("", statusPill(job.status, job.message), element("div", { className: "quiet small" }, words(job.reason))),
    cell("bar", ...bar(job)),
    labelled("Loss", number(progress?.loss)),
    labelled("Metrics", quality(job.metrics) || "–"),
    labelled("Workers", hasEnded(job.status) ? "–" : isGuest(job) ? String(job.world_size) : `${job.world_size} of ${job.workers}`),
    labelled("Saved", saved),
    labelled("Submitted", ago(job.created_at)));
}

const about = ({ spec, kind, owner, archived }) => [archived && "archived", otherUser(owner), kind === "guest" ? "guest run" : spec.task?.name, spec.compression?.method, spec.policy?.name].filter(Boolean).join(" · ");

function bar(job) {
  const progress = job.progress;
  if (!progress) return [element("span", { className: "quiet small" }, job.message)];
  const part = progress.steps ? progress.step / progress.steps : 0;
  const eta = job.world_size === 0 || progress.eta_s === null ? "" : ` · ${duration(progress.eta_s)} left`;
  const done = epochsDone(progress.epoch, progress.epochs);
  const told = job.status === "FAILED" ? `stopped after ${done}: ${job.message}` : `${done} done${eta}`;
  return [
    progress.steps !== null && element("progress", { className: barTone(job.status), value: part, max: 1, "aria-label": `Progress of ${job.name}` }),
    element("div", { className: "quiet small" }, told),
  ];
}

function tiles(jobs, cluster) {
  const count = (status) => String(jobs.filter((job) => job.status === status).length);
  const active = jobs.filter((job) => isActive(job.status));
  const guests = active.filter(isGuest).length;
  const cpus = `${number(cluster.cpus_reserved)} of ${number(cluster.cpus)}`;
  return [
    ["Running", String(active.length), guests ? `including ${counted(guests, "guest run")}` : "", true],
    ["Queued", count("QUEUED"), `${count("PAUSED")} paused`],
    ["Succeeded", count("SUCCEEDED")],
    ["Failed", count("FAILED")],
    ["CPUs in use", cpus, cluster.reachable ? usedByOthers(cluster, "cpus") || counted(cluster.nodes.filter((node) => node.alive).length, "node") : "cluster unreachable"],
  ];
}

async function update() {
  const status = at("status").value;
  const archived = at("archived").value;
  const [page, cluster] = await Promise.all([get(`/jobs?limit=${shown}&archived=${archived}${status ? `&status=${status}` : ""}`), get("/cluster")]);
  const isFiltered = status !== "" || archived !== "false";
  fill(at("rows"), ...page.items.map(row));
  at("empty").hidden = isFiltered || page.items.length > 0;
  at("none").hidden = !isFiltered || page.items.length > 0;
  at("more").hidden = page.next_cursor === null;
  if (!isFiltered) fill(at("tiles"), ...tiles(page.items, cluster).map(tile));
}

at("status").addEventListener("change", update);
at("archived").addEventListener("change", update);
at("more").addEventListener("click", () => {
  shown = Math.min(shown + PAGE_SIZE, 200);
  update();
});
updateEvery(1500, update);
