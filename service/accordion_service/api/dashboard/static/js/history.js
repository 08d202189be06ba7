// The epochs and decisions of a job's page: rows by key, and a thinned history of what is older than these.

// An epoch has a number; a decision has the place from which on it holds.
export const keyOf = (row) => (row.decision ? `${row.decision.epoch}:${row.decision.step}` : row.epoch);

export const positionOf = (row) => (row.decision ? row.decision.step : row.epoch);

const placeOf = ({ decision, epoch }) => decision?.epoch ?? epoch;

export const inOrder = (rows) => [...rows.values()].sort((a, b) => positionOf(a) - positionOf(b) || placeOf(a) - placeOf(b));

const byGroup = (a, b) => a.attempt - b.attempt || a.generation - b.generation;

// Old events may arrive after newer rows: the row of the newer worker group is kept.
export function keep(rows, row) {
  const known = rows.get(keyOf(row));
  if (known === undefined || byGroup(known, row) <= 0) rows.set(keyOf(row), row);
}

// Removes what a failed worker group did after its checkpoint: the next group trains it again.
export function takeBack({ epochs, decisions, thinned }, started) {
  const isVoid = (row) => byGroup(row, started) < 0 && (row.decision ? row.decision.step > started.step : row.epoch >= started.epoch);
  for (const rows of [epochs, decisions]) for (const [key, row] of rows) if (isVoid(row)) rows.delete(key);
  for (const name of ["epochs", "decisions"]) thinned[name] = thinned[name].filter((row) => !isVoid(row));
}

// What the charts show: all loaded rows, and before them the thinned history.
export function wholeHistory(seen) {
  const join = (name) => {
    const rows = inOrder(seen[name]);
    const isOlder = (row) => rows.length === 0 || positionOf(row) < positionOf(rows[0]);
    return [...seen.thinned[name].filter(isOlder), ...rows];
  };
  return { epochs: join("epochs"), decisions: join("decisions") };
}


// The values of one row: by key, without those that the row lacks.
const pick = (columns, place) => Object.fromEntries(Object.entries(columns)
  .map(([key, column]) => [key, column[place]])
  .filter(([, value]) => value !== null));

const pickNames = (columns, place, names) => Object.fromEntries(Object.entries(pick(columns, place)).map(([key, code]) => [key, names[code]]));

const splitColumns = (columns) => [true, false].map((isPlain) => Object.fromEntries(Object.entries(columns).filter(([, column]) => Array.isArray(column) === isPlain)));

function epochRows(columns, names) {
  const [plain, { metrics, seconds_by_phase: seconds, bytes, regime_by_layer: regimes, level_by_layer: levels }] = splitColumns(columns);
  return plain.epoch.map((_, place) => ({
    loss: null, ...pick(plain, place), metrics: pick(metrics, place), seconds_by_phase: pick(seconds, place), bytes: pick(bytes, place),
    regime_by_layer: pickNames(regimes, place, names), level_by_layer: pickNames(levels, place, names),
  }));
}

function decisionRows(columns, names) {
  const [plain, { change_by_layer: changes, override_by_layer: overrides, optimizer_overrides: settings }] = splitColumns(columns);
  return plain.epoch.map((_, place) => ({
    attempt: plain.attempt[place], generation: plain.generation[place],
    decision: { ...pick(plain, place), change_by_layer: pick(changes, place), override_by_layer: pickNames(overrides, place, names), optimizer_overrides: pick(settings, place) },
  }));
}

// The rows of a thinned history, which the service sends as columns.
export const rowsOf = ({ epochs, decisions, names }) => ({ epochs: epochRows(epochs, names), decisions: decisionRows(decisions, names) });
