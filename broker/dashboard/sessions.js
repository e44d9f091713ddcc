// The list of sessions: filters, pages, and the way to one of them.

import { get, poll, query } from "./api.js";
import { go } from "./app.js";
import { notice } from "./dialog.js";
import { el, field, input, pill, raw, select } from "./dom.js";
import { ago, expiry, moment } from "./format.js";
import { Pager, Table } from "./table.js";

const LIMIT = 50;
/** Pages may be short, even empty, while there is more: so many are looked at for one that is shown. */
const LOOKS_MAX = 10;
const FILTERS = ["prefix", "state", "user", "node", "namespace"];
const REFRESH_MS = 5_000;

export const STATE_TONES = { active: "ok", offline: "plain", ended: "warn" };

export function statePill(session) {
  return pill(session.state === "ended" && session.end_reason ? `ended: ${session.end_reason.replaceAll("_", " ")}` : session.state, STATE_TONES[session.state]);
}

export function timed(at_ms) {
  return el("span", { title: moment(at_ms) }, ago(at_ms));
}

function table() {
  return new Table({
    label: "Sessions", key: (row) => `${row.namespace}\n${row.client_id}`, empty: "No session fits.",
    columns: [
      { title: "ClientID", cell: (row) => raw(row.client_id), href: (row) => `#/session?${new URLSearchParams({ namespace: row.namespace, client_id: row.client_id })}` },
      { title: "State", cell: statePill },
      { title: "User", cell: (row) => (row.user === null ? el("span", { class: "quiet-text" }, "anonymous") : raw(row.user)) },
      { title: "Node", number: true, cell: (row) => String(row.node_id) },
      { title: "Expires", cell: (row) => expiry(row.expiry_sec) },
      { title: "Connected", cell: (row) => timed(row.connected_at_ms) },
      { title: "Changed", cell: (row) => timed(row.updated_at_ms) },
    ],
  });
}

/** Rows of one page, and the cursor behind it. */
async function page(parameters, cursor) {
  let [rows, next] = [[], cursor];
  for (let look = 0; look < LOOKS_MAX; look += 1) {
    const answer = await get(query("/v1/sessions", { ...parameters, limit: LIMIT - rows.length, cursor: next }));
    rows = rows.concat(answer.sessions);
    next = answer.cursor;
    if (next === null || rows.length >= LIMIT) break;
  }
  return [rows, next];
}

export function mount(main, parameters) {
  let wanted = parameters;
  const rows = table();
  const said = el("div", { role: "alert" });
  const controls = {
    prefix: input("prefix", { type: "search", placeholder: "begins with…" }),
    state: select("state", [["", "any"], ["active", "active"], ["offline", "offline"], ["ended", "ended"]]),
    user: input("user", { type: "search", placeholder: "exactly" }),
    node: input("node", { inputmode: "numeric", placeholder: "any" }),
    namespace: input("namespace", { placeholder: "any" }),
  };
  let turn = 0;
  const load = async () => {
    const mine = (turn += 1);
    try {
      const [found, next] = await page(wanted, pager.cursor);
      if (mine !== turn) return;
      said.replaceChildren();
      rows.setRows(found);
      pager.show(found.length, next, found.length === 1 ? "session" : "sessions");
    } catch (error) {
      if (mine === turn && error.code) said.replaceChildren(notice("bad", "The list cannot be shown", error.message));
      throw error;
    }
  };
  const pager = new Pager(() => polling.now());
  const fill = () => FILTERS.forEach((name) => { if (document.activeElement !== controls[name]) controls[name].value = wanted[name] ?? ""; });
  const filter = () => {
    wanted = Object.fromEntries(FILTERS.map((name) => [name, controls[name].value]));
    go("sessions", wanted, true);
    pager.reset();
    load().catch(() => {});
  };
  let typing;
  const typed = () => {
    clearTimeout(typing);
    typing = setTimeout(filter, 200);
  };
  for (const control of Object.values(controls)) control.addEventListener(control.tagName === "SELECT" ? "change" : "input", typed);
  main.append(
    el("div", { class: "view-head" }, el("h1", {}, "Sessions")),
    el("section", { class: "panel fresh" },
      el("div", { class: "filters", role: "search" }, field("ClientID", controls.prefix), field("State", controls.state), field("User", controls.user),
        field("Node", controls.node), field("Namespace", controls.namespace)),
      said, rows.element, pager.element));
  fill();
  const polling = poll(load, REFRESH_MS);
  return {
    stop: () => {
      clearTimeout(typing);
      polling.stop();
    },
    update: (next) => {
      wanted = next;
      fill();
      pager.reset();
      load().catch(() => {});
      return true;
    },
  };
}
