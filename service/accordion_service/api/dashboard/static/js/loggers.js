// Loggers of a job: how far each is, where its run is, and why its last attempt failed.
import { cell, counted, element, fill, labelled, moment, pill, table } from "./format.js";

const NAMES = { tensorboard: "TensorBoard", mlflow: "MLflow", wandb: "Weights & Biases" };
// The server's table: tone and end of each logger state.
const STATES = table("loggerStates");
const at = (id) => document.getElementById(id);

export const hasLoggers = () => at("loggers") !== null;

// A run is at a URL, which a server that is not ours may have named, or in files on the machine of the service.
function place(location) {
  if (!location) return "–";
  return /^https?:\/\//.test(location) ? element("a", { href: location, rel: "noreferrer" }, location) : element("span", { className: "mono" }, location);
}

const failure = ({ failures, message }) =>
  message && element("div", { className: "quiet small" }, `${counted(failures, "failed attempt")} in a row; newest: ${message}`);

const line = (logger) => element("tr", {},
  cell("", NAMES[logger.kind] ?? logger.kind), cell("", pill(STATES[logger.state]?.tone ?? "", logger.state)), labelled("Epochs sent", String(logger.next_epoch)),
  labelled("Last sent", logger.sent_at ? moment(logger.sent_at) : "–"), cell("long broken", place(logger.location), failure(logger)));

// Returns whether more may be sent.
export function showLoggers(loggers) {
  fill(at("loggers"), ...loggers.map(line));
  return !loggers.every(({ state }) => STATES[state]?.isFinal);
}
