// The audit log: who changed what.
import { get } from "./api.js";
import { cell, element, moment } from "./format.js";
import { fillRows, followPages } from "./paging.js";

const REFRESH_MS = 10000;
const PAGE_SIZE = 50;
const at = (id) => document.getElementById(id);

const text = (value) => (value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

function told(name, before, after) {
  if (!(name in after)) return `${name}: was ${text(before[name])}`;
  return name in before ? `${name}: ${text(before[name])} → ${text(after[name])}` : `${name}: ${text(after[name])}`;
}

const stored = (value) => JSON.stringify(value ?? null);

// Values that the change set, ended or replaced; those that it left as they were are not shown.
function changes(entry) {
  const [before, after] = [entry.before ?? {}, entry.after ?? {}];
  const names = Object.keys({ ...before, ...after }).filter((name) => stored(before[name]) !== stored(after[name]));
  return names.length ? names.map((name) => element("div", {}, told(name, before, after))) : ["–"];
}

const PLACES = { job: (id) => `/jobs/${id}`, override: (id) => `/jobs/${id}`, node: () => "/cluster", quota: () => "/cluster" };

function subject({ action, subject: id, subject_name: name }) {
  const place = action === "job.deleted" ? undefined : PLACES[action.split(".")[0]];
  const shown = place ? element("a", { href: place(encodeURIComponent(id)) }, id) : id;
  return name ? [element("div", {}, name), shown] : [shown];
}

const row = (entry) => element("tr", { "data-key": entry.id },
  cell("small when", moment(entry.time)),
  cell("name", entry.user),
  cell("", entry.action),
  cell("long mono", ...subject(entry)),
  cell("long", ...changes(entry)),
  element("td", { className: "mono", "data-label": "Token" }, entry.token_id || "–"),
  element("td", { className: "mono broken half-id", "data-label": "Request" }, entry.request_id));

function draw({ page }) {
  fillRows(page.items.map(row));
  at("none").hidden = page.items.length > 0;
}

followPages(REFRESH_MS, { load: async (query) => ({ page: await get(`/audit?limit=${PAGE_SIZE}&${query}`) }), draw });
