// A list with filters and pages. The address has both, under the names of the REST API, so that they can be linked and reloaded.
import { showLive, updateEvery } from "./api.js";
import { element, fill } from "./format.js";

// A part of a list is read less often than the whole list: it is looked at for longer, and changes less.
const PART_MS = 10000;
// Statuses of a request that is refused again if it is repeated.
const REFUSALS = [403, 422];
const at = (id) => document.getElementById(id);

const fields = () => [...at("filters").elements].filter((field) => field.name);

const isTime = (field) => field.type === "datetime-local";

// A field may take several values, separated by commas. One for a time has that of the browser's zone, the address that of UTC.
function values(field) {
  if (isTime(field)) return field.value ? [new Date(field.value).toISOString().replace(".000", "")] : [];
  return ("several" in field.dataset ? field.value.split(",") : [field.value]).map((text) => text.trim()).filter(Boolean);
}

function localTime(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return "";
  const local = new Date(time.getTime() - time.getTimezoneOffset() * 60000);
  return local.toISOString().slice(0, 19);
}

// Filters of the address that have no field; the page names them.
const hidden = () => {
  const named = new Set(fields().map((field) => field.name));
  const known = (at("filters").dataset.filters ?? "").split(" ").filter((name) => name && !named.has(name));
  return [...new URLSearchParams(location.search)].filter(([name]) => known.includes(name));
};

const chosen = () => new URLSearchParams([...fields().flatMap((field) => values(field).map((value) => [field.name, value])), ...hidden()]);

// What the address asks for.
function asked() {
  const known = new Set(["cursor", ...fields().map((field) => field.name), ...hidden().map(([name]) => name)]);
  return new URLSearchParams([...new URLSearchParams(location.search)].filter(([name]) => known.has(name)));
}

function showHidden() {
  if (!at("hidden")) return;
  const texts = hidden().map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  at("hidden").hidden = texts.length === 0;
  fill(at("hidden"), `Also filtered by ${texts.join(", ")}. `, element("a", { href: location.pathname }, "Show all"));
}

function fillFields() {
  const params = asked();
  for (const field of fields()) {
    const text = params.getAll(field.name).join(", ");
    const value = isTime(field) ? localTime(text) : text;
    const isListed = field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value);
    if (!isListed) field.add(new Option(value, value));
    field.value = value;
  }
}

// Cursors of the newer pages, the newest first; "" is the first page.
const trail = () => history.state?.trail ?? [];

function refuse(text) {
  at("refused").hidden = text === "";
  at("refused").textContent = text;
  if (text) at("none").hidden = true;
}

// Replaces only the cells that differ, so that focus and selection stay in the others. Each row has the key of its item.
export function fillRows(rows) {
  const known = new Map([...at("rows").children].map((row) => [row.dataset.key, row]));
  const shown = rows.map((row) => renew(known.get(row.dataset.key), row));
  for (const row of known.values()) if (!shown.includes(row)) row.remove();
  shown.forEach((row, place) => { if (at("rows").children[place] !== row) at("rows").insertBefore(row, at("rows").children[place] ?? null); });
}

function renew(old, row) {
  if (!old) return row;
  [...row.children].forEach((cell, place) => { if (!old.children[place].isEqualNode(cell)) old.children[place].replaceWith(cell); });
  return old;
}

// Shows the page of the list that the address asks for, now and every `ms` milliseconds: `load(query)` returns its items in `page`, `draw` shows them.
export function followPages(ms, { load, draw }) {
  let next = null;
  let readAt = -PART_MS;

  async function update() {
    const params = asked();
    const query = params.toString();
    readAt = -PART_MS;
    const isCurrent = () => asked().toString() === query;
    try {
      const answer = await load(query);
      if (!isCurrent()) return;
      refuse("");
      next = answer.page.next_cursor;
      draw(answer, query !== "");
    } catch (error) {
      if (!REFUSALS.includes(error.status)) throw error;
      if (!isCurrent()) return;
      refuse(error.message);
      next = null;
      fill(at("rows"));
    }
    readAt = performance.now();
    at("older").hidden = next === null;
    at("newer").hidden = !params.has("cursor");
  }

  // Until the page has come, there is no other one to go on to.
  function show() {
    showHidden();
    next = null;
    at("older").hidden = at("newer").hidden = true;
    update().then(() => showLive("live"), () => showLive("lost"));
  }

  async function poll() {
    if (asked().toString() === "" || performance.now() >= readAt + PART_MS) await update();
  }

  function go(how, params, newer) {
    const search = params.toString();
    history[how]({ trail: newer }, "", search ? `?${search}` : location.pathname);
    show();
  }

  function turn(cursor, newer) {
    const params = asked();
    if (cursor) params.set("cursor", cursor);
    else params.delete("cursor");
    go("pushState", params, newer);
    at("list-title").focus();
  }

  const filter = () => go("replaceState", chosen(), []);
  at("filters").addEventListener("change", filter);
  at("filters").addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  at("older").addEventListener("click", () => turn(next, [...trail(), asked().get("cursor") ?? ""]));
  at("newer").addEventListener("click", () => turn(trail().at(-1), trail().slice(0, -1)));
  addEventListener("popstate", () => { fillFields(); show(); });
  fillFields();
  showHidden();
  updateEvery(ms, poll);
}
