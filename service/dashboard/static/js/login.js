// Behind a one-time link: hand it in at once, so that opening the link is all that a person does.
const form = document.querySelector("form[data-link]");
if (form) form.requestSubmit();
