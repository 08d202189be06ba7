// The override form and the list of overrides.
import { BASE, call } from "./api.js";
import { cell, element, fill, isLive, levelText, otherUser, overridePill } from "./format.js";

const at = (id) => document.getElementById(id);

function optionValue(text) {
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

function options(text) {
  const pairs = text.split(",").map((part) => part.split("=").map((word) => word.trim())).filter(([key]) => key);
  return Object.fromEntries(pairs.map(([key, value = ""]) => [key, optionValue(value)]));
}

const LEVELS = { low: () => "low", high: () => "high", none: () => ({ method: "none" }), options: () => options(at("options").value) };

// The form of a guest without local steps has no choice.
const target = () => at("target")?.value ?? "compression";

// What is set for the whole model: its name, the list of its levels, and the field for a number, whose name is the last level.
const WHOLE_MODEL = {
  batch: { name: "global batch", levels: "batch", number: "samples" },
  local_steps: { name: "local steps", levels: "rounds", number: "steps" },
};

// What is set of the optimizer by a number, for which the job file has its own value.
const SETTINGS = { lr: "learning rate", weight_decay: "weight decay", clip_norm: "gradient norm to clip at" };

function setting() {
  const value = Number(at("setting").value);
  return { target: target(), level: target() === "lr" && at("rate-kind").value === "factor" ? { factor: value } : value };
}

function wholeModel() {
  const { levels, number } = WHOLE_MODEL[target()];
  const chosen = at(levels).value;
  return { target: target(), level: chosen === number ? Number(at(number).value) : chosen };
}

const compression = () => ({ level: LEVELS[at("level").value](), layers: at("layers").value.split(",").map((glob) => glob.trim()).filter(Boolean) });

function request() {
  const body = target() in SETTINGS ? setting() : target() in WHOLE_MODEL ? wholeModel() : compression();
  body.apply_at = at("apply").value === "epoch" ? Number(at("from").value || 0) : at("apply").value;
  if (at("until").value !== "") body.until = Number(at("until").value);
  if (at("reason").value) body.reason = at("reason").value;
  return body;
}

function refresh(job) {
  const isLayers = target() === "compression";
  at("level-field").hidden = at("layers-field").hidden = !isLayers;
  at("options-field").hidden = !isLayers || at("level").value !== "options";
  for (const [name, { levels, number }] of Object.entries(WHOLE_MODEL)) {
    if (!at(levels)) continue;
    at(`${levels}-field`).hidden = target() !== name;
    at(`${number}-field`).hidden = at(number).disabled = target() !== name || at(levels).value !== number;
  }
  if (at("setting")) {
    at("setting-field").hidden = at("setting").disabled = !(target() in SETTINGS);
    at("rate-kind-field").hidden = target() !== "lr";
  }
  at("from-field").hidden = at("apply").value !== "epoch";
  at("call").textContent = `POST ${BASE}/jobs/${job}/overrides\n${JSON.stringify(request())}`;
}

function say(tone, text) {
  const said = at("override-said");
  said.hidden = false;
  said.className = `said ${tone}`;
  said.textContent = text;
}

// Shows which global batch is in force, and within which limits the form can set another one; null for a job without batch levels.
export function showBatch(batch, saidBy) {
  at("schedule-batch").hidden = batch === null;
  if (batch === null || !at("batch")) return;
  const { low, high, min, max } = batch;
  at("batch-hint").textContent = `samples per step; low: ${low}, high: ${high}`;
  at("samples-hint").textContent = `${min} to ${max.toLocaleString("en")}, so that every worker gets a part`;
  at("samples").max = max;
  at("schedule-batch").textContent = `Global batch: ${batch.global_batch} samples per step (${batch.level ?? "custom size"}), decided by ${saidBy}; the policy would choose ${batch.policy_level}.`;
}

// Shows how many local steps workers take, and within which limits the form can set another number; null for a job without a ladder of them.
export function showRounds(ladder, { local_steps: length, policy_local_steps: policy }, saidBy) {
  at("schedule-rounds").hidden = !ladder;
  if (!ladder) return;
  const { low, budget } = ladder;
  const high = ladder.high ?? low;
  at("rounds-hint").textContent = `optimizer steps between two exchanges; ${low === null ? `low follows from a budget of ${budget}` : `low: ${low}, high: ${high}`}`;
  at("steps-hint").textContent = `1, which exchanges gradients in every step, to ${high ?? "the job's high, which its log tells"}`;
  at("steps").max = high ?? "";
  const said = length > 1 ? `each worker takes ${length} steps between two exchanges` : "gradients are exchanged in every step now";
  at("schedule-rounds").textContent = `Local steps: ${said}${saidBy === "policy" ? "" : `, decided by ${saidBy}; the policy would choose ${policy}`}.`;
}

// Shows what overrides set of the optimizer; `sayer` names the override.
export function showOptimizer({ optimizer, optimizer_said_by: saidBy }, sayer) {
  const by = (name) => sayer({ said_by: saidBy[name === "lr_factor" ? "lr" : name] });
  const parts = Object.entries(optimizer).map(([name, value]) => `${name} ${value}, decided by ${by(name)}`);
  at("schedule-optimizer").hidden = parts.length === 0;
  at("schedule-optimizer").textContent = `Optimizer: ${parts.join("; ")}.`;
}

export function openForm(job, changed) {
  const form = at("override");
  form.addEventListener("input", () => refresh(job));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      await call("POST", `${BASE}/jobs/${job}/overrides`, request());
      say("good", "Accepted. The list shows when every worker has applied it.");
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

export function closeForm() {
  at("override").hidden = true;
  at("override-closed").hidden = false;
}

const span = (row) => {
  const from = row.epoch ?? (row.apply_at === "next_step" ? "next step" : row.apply_at === "next_epoch" ? "next epoch" : row.apply_at);
  return `${from} → ${row.until ?? "end"}`;
};

const acknowledged = (row) => {
  if (row.world_size === null) return "–";
  const where = row.step === null ? "" : `, step ${row.step}`;
  return `${row.acks} of ${row.world_size}${where}`;
};

function back(job, row, changed) {
  const give = async (event) => {
    event.target.disabled = true;
    await call("DELETE", `${BASE}/jobs/${job}/overrides/${row.id}`).catch((error) => say("bad", error.message));
    changed();
  };
  return element("button", { className: "tiny", onclick: give, "aria-label": `Cancel override ${row.number}` }, "Cancel");
}

export function showOverrides(job, rows, { ended, changed }) {
  const newestFirst = [...rows].reverse();
  const line = (row) => element("tr", {},
    cell("", overridePill(row.state, row.message), row.message ? element("div", { className: "quiet small" }, row.message) : ""),
    cell("", levelText(row.level)),
    cell(row.target === "compression" ? "mono" : "", WHOLE_MODEL[row.target]?.name ?? SETTINGS[row.target] ?? row.layers.join(", "), element("div", { className: "quiet small" }, [row.reason, otherUser(row.requested_by) && `by ${row.requested_by}`].filter(Boolean).join(", "))),
    cell("", span(row)),
    cell("", acknowledged(row)),
    cell("num", !ended && isLive(row.state) ? back(job, row, changed) : ""));
  const none = element("tr", {}, element("td", { className: "quiet", colSpan: 6 }, "No overrides: the policy decides."));
  fill(at("overrides"), ...(rows.length ? newestFirst.map(line) : [none]));
}
