// Formats numbers, times and small pieces of markup.

export const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};

// Plotly reads tags and entities in all its texts, and makes links of some.
export const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

export const cell = (className, ...children) => element("td", { className }, ...children);

export const labelled = (label, ...children) => element("td", { className: "num", "data-label": label }, ...children);

export const fill = (node, ...children) => node.replaceChildren(...children);

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const unit = Math.min(UNITS.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(count, 1)) / 3)));
  return `${number(count / 1000 ** unit, 3)} ${UNITS[unit]}`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1);
  return size >= 10 ** (digits - 1) ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

const percent = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : "–");

// A script may give an accuracy in percent by itself.
export const isAccuracy = (name) => name === "accuracy" || name.endsWith("_accuracy");

// Metrics other than the loss, under the names that tasks give them. Accuracy comes first and is shown in percent.
export const measured = (rows) => [...new Set(rows.flatMap(({ metrics }) => Object.keys(metrics)))]
  .filter((name) => name !== "loss")
  .sort((a, b) => isAccuracy(b) - isAccuracy(a));

export const metric = (name, value) => (isAccuracy(name) && value <= 1 ? percent(value) : number(value, 4));

export const quality = (metrics) => measured([{ metrics }]).map((name) => `${name} ${metric(name, metrics[name])}`).join(", ");

export const times = (sent, dense) => (sent > 0 ? `${number(dense / sent, 3)}×` : "–");

export const counted = (count, noun) => `${count} ${count === 1 ? noun : `${noun.replace(/y$/, "ie")}s`}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const ago = (text) => (text ? `${duration((Date.now() - Date.parse(text)) / 1000)} ago` : "–");

export const clock = (text) => new Date(text).toLocaleTimeString([], { hour12: false });

export const moment = (text) => `${new Date(text).toLocaleDateString("en-CA")} ${clock(text)}`;

// The server's tables: phase, tone and activity of each job status, and tone and activity of each override state.
export const table = (name) => JSON.parse(document.documentElement.dataset[name]);
const STATUSES = table("statuses");
const OVERRIDE_STATES = table("overrideStates");

const tone = (status) => STATUSES[status]?.tone ?? "";

export const isActive = (status) => STATUSES[status]?.isActive ?? false;

export const isHeld = (status) => STATUSES[status]?.phase === "held";

export const hasEnded = (status) => STATUSES[status]?.phase === "ended";

// Statuses of jobs that may have workers.
export const UNHELD = Object.keys(STATUSES).filter((status) => !hasEnded(status) && !isHeld(status));

export const barTone = (status) => (hasEnded(status) ? tone(status) : "");

export const words = (constant) => {
  const text = constant.replaceAll("_", " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
};

export const pill = (name, text, title) => element("span", { className: `pill ${name}`, title }, words(text));

export const statusPill = (status, title = "") => pill(tone(status), status, title);

export const overridePill = (state, title = "") => pill(OVERRIDE_STATES[state]?.tone ?? "", state, title);

export const isLive = (state) => OVERRIDE_STATES[state]?.isLive ?? false;

export const repaint = (node, status) => {
  node.className = `pill ${tone(status)}`;
  node.textContent = words(status);
};

// The user who caused an event, to follow what happened; empty if the service or the workers did.
export const byUser = ({ by }) => (by ? ` by ${by}` : "");

const listed = (value) => (typeof value === "object" ? Object.entries(value).map((pair) => pair.join(":")).join(" ") || "none" : String(value));

// What a user changed of a job's name, labels and priority.
export const changeText = ({ before, after, ...data }) =>
  `changed${byUser(data)}: ${Object.keys(after).map((name) => `${name} ${listed(before[name])} → ${listed(after[name])}`).join(", ")}`;

// The user, unless it is whoever looks at the page.
export const otherUser = (user) => (user && user !== document.documentElement.dataset.user ? user : "");

export const isGuest = (job) => job.kind === "guest";

// Finished epochs, and the planned number if it is known.
export const epochsDone = (done, planned) => (planned ? `${done} of ${planned} epochs` : counted(done, "epoch"));

const ENGINES = { "ray-train": "Ray Train", actors: "plain actors" };

export function rayText({ engine, train_run: run, ray_job_id: job }) {
  const parts = [engine ? `Workers run by ${ENGINES[engine] ?? engine}` : "", run ? `run ${run}` : "", job ? `Ray job ${job}` : ""];
  return parts.filter(Boolean).join(" · ");
}

export const levelClass = (name) => (["low", "high", "none", "half"].includes(name) ? name : "other");

export const swatch = (kind, text) => element("span", {}, element("i", { className: `swatch ${kind}` }), text);

// Resources used by other programs; `kind` is "cpus" or "gpus".
export function usedByOthers(cluster, kind) {
  const used = cluster[`${kind}_foreign`];
  const noun = `${kind.slice(0, 3).toUpperCase()}s`;
  return used > 0 ? `${number(used)} of ${number(cluster[kind])} ${noun} are used by other programs` : "";
}

export const tile = ([label, value, note = "", strong = false]) =>
  element("div", { className: strong ? "tile strong" : "tile" },
    element("dt", {}, label), element("dd", {}, value, element("span", { className: "note" }, note)));

export function storageText({ place, workers, hosts, seen_at }) {
  const when = moment(seen_at);
  if (workers === 1) return `Checkpoints in ${place}, used by one worker since ${when}`;
  return `Checkpoints in ${place}, shared: verified by ${workers} workers on ${counted(hosts, "host")} at ${when}`;
}

export function packagesText({ packages, size_bytes: size, seconds }) {
  if (packages.length === 0) return "none, because the workers have all that pip names";
  return `${packages.map(({ name, version }) => `${name} ${version}`).join(", ")} (${bytes(size)}, resolved in ${duration(seconds)})`;
}

export const levelText = (level) => {
  if (typeof level !== "object") return String(level);
  return Object.entries(level).map(([key, value]) => `${key}=${value}`).join(", ");
};

// What an override sets, without the names of layers.
const TARGETS = { batch: "batch ", local_steps: "local steps ", lr: "learning rate ", weight_decay: "weight decay ", clip_norm: "clip_norm " };
export const overrideLevel = ({ target, level }) => `${TARGETS[target] ?? ""}${levelText(level)}`;

const layerNames = ({ target, layers }) => (target in TARGETS || layers.length === 0 ? "" : ` for ${layers.join(", ")}`);

export const overrideText = (row) => `${overrideLevel(row)}${layerNames(row)}`;
