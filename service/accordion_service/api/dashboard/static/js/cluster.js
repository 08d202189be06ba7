import { get, updateEvery } from "./api.js";
import { ago, bytes, cell, element, fill, number, tile, usedByOthers } from "./format.js";
import { QUEUE_MS, readQueue, reasonText, waitsFor } from "./queue.js";

const REFRESH_MS = 2000;
const at = (id) => document.getElementById(id);

const queued = (entry, names) => element("tr", {},
  cell("num", String(entry.position)),
  cell("name", entry.name === null ? `a job of ${entry.owner}` : element("a", { href: `/jobs/${entry.id}` }, entry.name)),
  cell("num", String(entry.priority)),
  cell("long", reasonText(entry)),
  cell("long", ...(entry.waits_for.length ? waitsFor(entry, names) : ["–"])),
  cell("long", entry.remedies.join("; ") || "–"),
  cell("num", ago(entry.created_at)));

const share = (used, limit) => (limit === null ? "–" : used === null ? `at most ${number(limit)} each` : `${number(used)} of ${number(limit)}`);

const subject = (quota) => quota.user === "*" ? "any other user" : quota.user === null ? `label ${quota.label}` : `user ${quota.user}`;

const quotaRow = (quota, name, used) => element("tr", {},
  cell("name", name),
  ...["jobs", "workers", "gpus"].map((unit) => cell("num", share(used && used[unit], quota[unit]))));

const quotaRows = (quota) => [
  quotaRow(quota, subject(quota), quota.used),
  ...Object.entries(quota.used_by_user).map(([user, used]) => quotaRow(quota, `– user ${user}`, used)),
];

const PLACEMENT = { AVOIDED: ["bad", "Avoided"], CORDONED: ["wait", "Cordoned"], FAILING: ["wait", "Failing"] };

const nodeState = (node, placement) => {
  if (!node.alive) return ["bad", "Dead"];
  return node.draining ? ["wait", "Draining"] : PLACEMENT[placement?.state] ?? ["good", "Alive"];
};

const failuresOf = (placement) => {
  const [newest] = placement?.failures ?? [];
  return [String(placement?.num_failures ?? 0), newest && element("div", { className: "quiet small", title: newest.reason ?? "" }, `last ${ago(newest.time)}`)].filter(Boolean);
};

const traits = (node) => [
  ...Object.entries(node.custom).map(([name, amount]) => `${number(amount)} ${name}`),
  ...Object.entries(node.labels).filter(([name]) => name !== "ray.io/node-id").map(([name, value]) => `${name}=${value}`),
].join(", ") || "–";

const nodeRow = (node, placement) => element("tr", {},
  cell("mono", node.name, element("div", { className: "quiet small" }, node.id.slice(0, 12))),
  cell("mono", node.address),
  cell("long", element("span", { className: `pill ${nodeState(node, placement)[0]}` }, nodeState(node, placement)[1]),
    node.alive && placement?.message ? element("div", { className: "quiet small" }, placement.message) : ""),
  cell("num", ...failuresOf(placement)),
  cell("num", number(node.cpus)),
  cell("num", number(node.gpus)),
  cell("num", bytes(node.memory_bytes)),
  cell("long", traits(node)));

const check = ([name, result]) => element("tr", {},
  cell("", element("span", { className: result.ok ? "pill good" : "pill bad" }, result.ok ? "OK" : "Not ready")),
  cell("", name.replaceAll("_", " ")),
  cell("long", result.message));

const readiness = async () => (await fetch("/readyz", { credentials: "same-origin" })).json();

let queue;
let queueAt = -QUEUE_MS;

// The queue as it was read last, at most a few seconds ago.
async function recentQueue() {
  if (performance.now() < queueAt + QUEUE_MS) return queue;
  queue = await readQueue();
  queueAt = performance.now();
  return queue;
}

async function update() {
  const [cluster, { items: waiting, names }, quotas, nodes, ready] = await Promise.all([get("/cluster"), recentQueue(), get("/quotas"), get("/nodes"), readiness()]);
  const placements = new Map(nodes.items.map((node) => [node.name, node]));
  fill(at("tiles"), ...[
    ["Cluster", cluster.reachable ? "Reachable" : "Not reachable", cluster.seen_at ? `checked ${ago(cluster.seen_at)}` : "not checked yet", true],
    ["Nodes", String(cluster.nodes.filter((node) => node.alive).length)],
    ["CPUs in use", `${number(cluster.cpus_reserved)} of ${number(cluster.cpus)}`, usedByOthers(cluster, "cpus")],
    ["GPUs in use", `${number(cluster.gpus_reserved)} of ${number(cluster.gpus)}`, usedByOthers(cluster, "gpus")],
    ["Queued jobs", String(waiting.length)],
  ].map(tile));
  fill(at("queue"), ...waiting.map((entry) => queued(entry, names)));
  at("queue-empty").hidden = waiting.length > 0;
  fill(at("quotas"), ...quotas.items.flatMap(quotaRows));
  at("quotas-card").hidden = quotas.items.length === 0;
  fill(at("nodes"), ...cluster.nodes.map((node) => nodeRow(node, placements.get(node.name))));
  at("nodes-empty").hidden = cluster.nodes.length > 0;
  fill(at("checks"), ...Object.entries(ready.checks ?? {}).map(check));
}

updateEvery(REFRESH_MS, update);
