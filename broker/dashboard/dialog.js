// Dialogs: the browser's own, which keep the focus inside, close with Esc and give the focus back.

import { button, el } from "./dom.js";

let number = 0;

/** Opens a dialog with a form. `submit` gets the form and says what is shown then, a node; it may be asked again. */
export function ask({ title, body, action, tone = "primary", submit, closed }) {
  const id = `dialog-${(number += 1)}`;
  const result = el("div", { class: "result", role: "status", "aria-live": "polite" });
  const confirm = el("button", { type: "submit", class: tone }, action);
  const cancel = button("Cancel", () => dialog.close(), { class: "quiet" });
  const form = el("form", { on: { submit: go } },
    el("h2", { id }, title), body, result, el("div", { class: "actions" }, cancel, confirm));
  const dialog = el("dialog", { "aria-labelledby": id, on: { close: left, click: follow } }, form);
  let done = false;

  async function go(event) {
    event.preventDefault();
    if (confirm.disabled) return;
    confirm.disabled = true;
    confirm.textContent = "Working…";
    result.replaceChildren();
    const answer = await submit(new FormData(form), (node) => result.replaceChildren(node));
    result.replaceChildren(answer.node);
    confirm.textContent = action;
    confirm.disabled = false;
    if (answer.done) {
      done = true;
      confirm.hidden = true;
      cancel.textContent = "Close";
      for (const control of body.querySelectorAll("input, select, textarea")) control.disabled = true;
      cancel.focus();
    }
  }

  // A link leads to what is behind the dialog.
  function follow(event) {
    if (event.target.closest("a")) dialog.close();
  }

  function left() {
    dialog.remove();
    closed?.(done);
  }

  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A message with a tone: what happened, and what can be done. */
export function notice(tone, title, ...lines) {
  return el("div", { class: `notice ${tone}` }, el("strong", {}, title), lines.filter(Boolean).map((line) => el("p", {}, line)));
}
