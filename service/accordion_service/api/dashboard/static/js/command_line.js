// Log in the command line: create a code, and bring it to the port where the command waits.
import { BASE, call } from "./api.js";

const form = document.querySelector("form[data-port]");
const button = form.querySelector("button");
const said = document.querySelector("[role=alert]");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { port, challenge, label } = form.dataset;
  try {
    const made = await call("POST", `${BASE}/login-codes`, { challenge, label });
    location.assign(`http://127.0.0.1:${port}/?code=${encodeURIComponent(made.code)}`);
  } catch (error) {
    said.hidden = false;
    said.textContent = error.message;
  }
});
button.disabled = false; // before, a click would send the form to this page's own address
