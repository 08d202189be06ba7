// Calls of the documented REST API.

export const BASE = "/api/v1";

export async function call(method, path, body) {
  const silent = () => { throw new Error("The service does not respond, so the request may not have been carried out. Try again later."); };
  const answer = await fetch(path, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
  }).catch(silent);
  if (answer.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  if (!answer.ok) throw Object.assign(new Error(await sentence(answer)), { status: answer.status });
  return answer.status === 204 ? null : answer.json();
}

export const get = (path) => call("GET", BASE + path);

async function sentence(answer) {
  const problem = await answer.json().catch(() => null);
  if (!problem?.detail) return `The service answered ${answer.status} ${answer.statusText}.`;
  const items = (problem.errors ?? []).map((item) => `${item.pointer ? `${item.pointer}: ` : ""}${item.detail}`);
  return items.length ? items.join("; ") : problem.detail;
}

const live = () => document.getElementById("live");

export function showLive(state) {
  const [tone, text] = { live: ["run", "Live"], lost: ["bad", "Connection lost, retrying"], over: ["", "Finished"] }[state];
  if (live().textContent === text) return;
  live().hidden = false;
  live().className = `pill ${tone}`;
  live().textContent = text;
}

// Calls `update` now and every `ms` milliseconds while the page is visible, and retries after a failure.
export function updateEvery(ms, update) {
  let busy = false;
  const once = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      await update();
      showLive("live");
    } catch (error) {
      showLive("lost");
    } finally {
      busy = false;
    }
  };
  once();
  document.addEventListener("visibilitychange", once);
  const timer = setInterval(once, ms);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", once);
  };
}
