// Submit a one-time link at once, so that opening it is enough to log in.
const form = document.querySelector("form[data-link]");
if (form) form.requestSubmit();
