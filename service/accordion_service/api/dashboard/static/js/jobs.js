import { get } from "./api.js";
import { ago, barTone, cell, counted, duration, element, epochsDone, fill, hasEnded, isActive, isGuest, labelled, number, otherUser, quality, statusPill, tile, times, usedByOthers, words } from "./format.js";
import { fillRows, followPages } from "./paging.js";

const REFRESH_MS = 1500;
const PAGE_SIZE = 50;
const at = (id) => document.getElementById(id);

function row(job) {
  const progress = job.progress;
  const saved = progress ? times(progress.bytes.wire, progress.bytes.dense_wire) : "–";
  return element("tr", { "data-key": job.id },
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

function tiles(counts, cluster) {
  const active = (numbers) => Object.keys(numbers).filter(isActive).reduce((sum, status) => sum + numbers[status], 0);
  const count = (status) => counts.jobs[status] + counts.guests[status];
  const guests = active(counts.guests);
  const cpus = `${number(cluster.cpus_reserved)} of ${number(cluster.cpus)}`;
  return [
    ["Running", String(active(counts.jobs) + guests), guests ? `including ${counted(guests, "guest run")}` : "", true],
    ["Queued", String(count("QUEUED")), `${count("PAUSED")} paused`],
    ["Succeeded", String(count("SUCCEEDED"))],
    ["Failed", String(count("FAILED"))],
    ["CPUs in use", cpus, cluster.reachable ? usedByOthers(cluster, "cpus") || counted(cluster.nodes.filter((node) => node.alive).length, "node") : "cluster unreachable"],
  ];
}

// The tiles, for which jobs are counted and the cluster is read, are shown only above the whole list.
async function load(query) {
  const isPart = query !== "";
  const [page, counts, cluster] = await Promise.all([get(`/jobs?limit=${PAGE_SIZE}&${query}`), isPart ? null : get("/job-counts"), isPart ? null : get("/cluster")]);
  return { page, counts, cluster };
}

function draw({ page, counts, cluster }, isPart) {
  const isEmpty = page.items.length === 0;
  fillRows(page.items.map(row));
  at("empty").hidden = isPart || !isEmpty;
  at("none").hidden = !isPart || !isEmpty;
  at("tiles").hidden = isPart;
  if (!isPart) fill(at("tiles"), ...tiles(counts, cluster).map(tile));
}

followPages(REFRESH_MS, { load, draw });
