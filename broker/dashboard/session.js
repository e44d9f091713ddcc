// One session: who owns it, what waits for it, and its End.

import { Problem, get, may, needs, poll, post, query } from "./api.js";
import { ask, notice } from "./dialog.js";
import { button, el, facts, field, pill, raw, select } from "./dom.js";
import { NONE, bytes, count, expiry, left, moment, words } from "./format.js";
import { statePill, timed } from "./sessions.js";
import { Table } from "./table.js";

const REASONS = [["revoked", "Revoked: it may not be here any more"], ["explicit", "Explicit: an operator wants it gone"], ["quota", "Quota: it uses too much"], ["source_lost", "Source lost: what it stands for is gone"]];

function path(namespace, client_id, more = "") {
  return query(`/v1/sessions/${encodeURIComponent(client_id)}${more}`, { namespace });
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** What an End that failed means, and what to do about it. */
function failure(error, reload, node_id) {
  const say = (tone, title, ...lines) => notice(tone, title, ...lines);
  switch (error.code) {
    case "fenced": {
      const now = error.body.current;
      return say("warn", "409: another connection has the session now",
        now ? `It is with node ${now.node_id}, boot ${now.boot_id}, connection ${now.connection_id} (owner generation ${now.owner_generation}). Nothing of it was touched.` : "Nothing of it was touched.",
        el("span", {}, "Look at that one, then decide anew. ", button("Show the new owner", reload, { class: "link" })));
    }
    case "unproved":
      return say("bad", "503: not proved that its connection stopped", error.message,
        el("span", {}, "Nothing was ended. Wait until the node is back, or, when nothing of it runs any more, ", el("a", { href: `#/nodes?node=${node_id}` }, `retire its boot on node ${node_id}`), "."));
    case "close":
      return say("bad", "503: its socket could not be closed", error.message, "Nothing was ended. Try again; the log of its node says why it does not close.");
    case "deadline":
      return say("bad", "503: it did not stop in time", error.message, "Repeating it is safe.");
    case "unavailable":
      return say("bad", "503: no answer from the store", error.message, "It may be ended or not: ask again, an ended session answers with success.");
    case "not_found":
      return say("warn", "404: there is no such session any more", "Somebody else ended it, or it expired.");
    case "unauthorized":
      return say("bad", "401: the token is not valid any more", error.message);
    default:
      return error instanceof Problem ? say("bad", `${error.status}: ${words(error.code)}`, error.message)
        : say("bad", "The node did not answer", error.message, "It may be ended or not. Repeating it is safe.");
  }
}

function endDialog(session, reload) {
  const choice = (type, name, value, text, hint, checked) => el("label", { class: "choice" }, el("input", { type, name, value, checked }), el("span", {}, text, el("span", { class: "hint" }, hint)));
  const body = el("div", { class: "stack" },
    el("p", {}, "Its socket is closed and nothing of it runs any more when this succeeds. Exactly the owner that is shown is ended: a newer one is left alone."),
    field("Reason", select("reason", REASONS, "revoked")),
    el("fieldset", {}, el("legend", {}, "Its Will"),
      choice("radio", "will", "publish", "Publish", "As if the connection was lost", true),
      choice("radio", "will", "suppress", "Suppress", "Nobody hears of it")),
    el("fieldset", {}, el("legend", {}, "And then"),
      choice("checkbox", "deny", "yes", "Deny the ClientID", "Nobody connects with it until it is allowed again: exactmq deny remove"),
      choice("checkbox", "release", "yes", "Release the ClientID", "Once reclaimed, another user may have it")));
  ask({
    title: el("span", {}, "End ", raw(session.client_id)),
    body, action: "End session", tone: "danger",
    closed: (done) => done && reload(),
    submit: async (form) => {
      const request = { reason: form.get("reason"), will: form.get("will"), owner: session.owner, deny: form.has("deny"), release: form.has("release") };
      try {
        const [, answer] = await post(path(session.namespace, session.client_id, "/end"), request);
        return { done: true, node: notice("ok", "Ended", `Its socket is closed and nothing of it runs. Final revision ${count(answer.revision)}.`, request.deny ? "Its ClientID is denied." : null) };
      } catch (error) {
        return { done: false, node: failure(error, () => { document.querySelector("dialog")?.close(); reload(); }, session.node_id) };
      }
    },
  });
}

function subscriptionTable() {
  return new Table({
    label: "Subscriptions", key: (row) => row.filter, empty: "No subscriptions.",
    columns: [
      { title: "Filter", cell: (row) => raw(row.filter, { class: "raw mono" }) },
      { title: "QoS", number: true, cell: (row) => String(row.qos) },
      { title: "Options", cell: (row) => [row.no_local && "no local", row.retain_as_published && "retain as published"].filter(Boolean).join(", ") || NONE },
      { title: "Identifier", number: true, cell: (row) => (row.identifier ? count(row.identifier) : NONE) },
    ],
  });
}

function panel(title, ...content) {
  return el("section", { class: "panel" }, el("h2", {}, title), ...content);
}

function ownerFacts({ owner }) {
  const code = (text) => el("span", { class: "mono" }, String(text));
  return facts([["Node", code(owner.node_id)], ["Boot", code(owner.boot_id)], ["Connection", code(count(owner.connection_id))],
    ["Session generation", code(count(owner.session_generation))], ["Owner generation", code(count(owner.owner_generation))]]);
}

function panels(session) {
  const { inbox, will } = session;
  return [
    panel("Session", el("div", { class: "body" }, facts([
      ["User", session.user === null ? "anonymous" : raw(session.user)], ["Namespace", raw(session.namespace)],
      ["Connected", timed(session.connected_at_ms)], ["Changed", timed(session.updated_at_ms)],
      ["Expires after", expiry(session.expiry_sec)],
      session.offline_expires_at_ms !== null && ["Offline session ends", el("span", { title: moment(session.offline_expires_at_ms) }, left(session.offline_expires_at_ms))],
      ["Revision", count(session.revision)]]))),
    panel(session.state === "active" ? "Owner: may act" : "Last owner", el("div", { class: "body" }, ownerFacts(session))),
    el("div", { class: "stack" },
      panel("Inbox", el("div", { class: "body" }, inbox === null ? el("p", { class: "quiet-text" }, "None: the session ends with its connection.") : facts([
        ["Not acknowledged", `${count(inbox.messages)} messages`], ["Bytes", bytes(inbox.bytes)], ["Oldest offset", count(inbox.base)], ["Next offset", count(inbox.end)]]))),
      panel("Will", el("div", { class: "body" }, will === null ? el("p", { class: "quiet-text" }, "None.") : facts([
        ["Phase", pill(words(will.phase), { armed: "accent", waiting: "warn", ready: "warn", executing: "warn" }[will.phase] ?? "plain")],
        ["Delay", `${count(will.delay_sec)} s`], ["Due", will.due_at_ms === null ? NONE : left(will.due_at_ms)]])))),
  ];
}

export function mount(main, { namespace = "main", client_id = "" }) {
  const head = el("div", { class: "view-head" }, el("a", { href: "#/sessions" }, "Sessions"), el("span", { class: "quiet-text", "aria-hidden": "true" }, "/"), el("h1", {}, raw(client_id)));
  const state = el("span", {});
  const end = button("End session…", () => shown && endDialog(shown, () => polling.now()), { class: "danger", disabled: true });
  head.append(state, el("div", { class: "end" }, end));
  const grid = el("div", { class: "columns fresh" });
  const subscriptions = subscriptionTable();
  const total = el("span", { class: "quiet-text" });
  const list = el("section", { class: "panel fresh", hidden: true }, el("div", { class: "panel-head" }, el("h2", {}, "Subscriptions"), total), subscriptions.element);
  main.append(head, grid, list);
  let shown = null;
  const load = async () => {
    if (client_id === "." || client_id === "..") {
      grid.replaceChildren(notice("warn", "This ClientID cannot stand in a URL", "Use the command line: exactmq session show, exactmq session end."));
      return;
    }
    try {
      const session = await get(path(namespace, client_id));
      state.replaceChildren(statePill(session));
      end.disabled = session.state === "ended" || !may("operator");
      end.title = needs("operator").title ?? "";
      if (!same(session, shown)) {
        grid.replaceChildren(...panels(session));
        subscriptions.setRows(session.subscriptions);
        const some = session.subscriptions.length < session.subscriptions_total;
        total.textContent = some ? `the first ${count(session.subscriptions.length)} of ${count(session.subscriptions_total)}` : count(session.subscriptions_total);
        list.hidden = false;
      }
      shown = session;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      shown = null;
      end.disabled = true;
      list.hidden = true;
      state.replaceChildren();
      grid.replaceChildren(error.code === "not_found" ? notice("warn", "There is no such session", "It was removed, or never was.") : notice("bad", "It cannot be shown", error.message));
    }
  };
  const polling = poll(load, 3_000);
  return { stop: () => polling.stop() };
}
