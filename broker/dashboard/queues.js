// Channels and their members: two tables of the same make.

import { get, poll, query } from "./api.js";
import { go } from "./app.js";
import { notice } from "./dialog.js";
import { el, field, input, pill, raw, select } from "./dom.js";
import { NONE, bytes, count, span, words } from "./format.js";
import { timed } from "./sessions.js";
import { Pager, Table, sorts } from "./table.js";

const LIMIT = 50;
const REFRESH_MS = 5_000;
const any = (list) => [["", "any"], ...list.map((word) => [word, words(word)])];
const KINDS = ["mpsc", "mpmc", "group", "sub", "inbox", "share"];

function leaseCell(row) {
  if (row.lease === null) return NONE;
  const tone = row.standing === "at_risk" || row.standing === "lost" ? "bad" : row.lease === "armed" ? "warn" : "plain";
  return el("span", {}, pill(row.standing && row.standing !== "held" ? words(row.standing) : row.lease, tone), row.lease_left_ms === null ? "" : el("span", { class: "quiet-text" }, ` ${span(row.lease_left_ms)}`));
}

const CHANNELS = {
  name: "channels", title: "Channels", path: "/v1/channels", rows: "channels", what: "channels",
  order: [["messages", "desc"]],
  key: (row) => row.channel,
  filters: { kind: any(KINDS), state: any(["open", "sealed", "closing"]), name: "Name", min_messages: "At least so many messages" },
  columns: [
    { title: "Name", sort: "name", cell: (row) => raw(row.name ?? row.channel, { title: row.channel }), href: (row) => `#/members?${new URLSearchParams({ channel: row.channel })}` },
    { title: "Kind", sort: "kind", cell: (row) => pill(row.kind, "plain") },
    { title: "State", sort: "state", cell: (row) => el("span", { title: row.sealed_because ?? "" }, pill(row.state, row.state === "open" ? "ok" : "warn")) },
    { title: "Messages", sort: "messages", number: true, cell: (row) => count(row.messages) },
    { title: "Bytes", sort: "bytes", number: true, cell: (row) => bytes(row.bytes) },
    { title: "Claimed", sort: "claimed", number: true, cell: (row) => count(row.claimed) },
    { title: "Discarded", sort: "discarded", number: true, cell: (row) => count(row.discarded) },
    { title: "Producers", sort: "producers", number: true, cell: (row) => count(row.producers) },
    { title: "Consumers", sort: "consumers", number: true, cell: (row) => count(row.consumers) },
    { title: "Node", sort: "node_id", number: true, cell: (row) => count(row.node_id) },
    { title: "Lease", sort: "lease", cell: leaseCell },
    { title: "Made", sort: "created_at_ms", cell: (row) => (row.created_at_ms === null ? NONE : timed(row.created_at_ms)) },
  ],
};

const MEMBERS = {
  name: "members", title: "Members", path: "/v1/members", rows: "members", what: "members",
  order: [],
  key: (row) => `${row.member}\n${row.channel}\n${row.role}`,
  filters: { channel: "Channel id", kind: any(KINDS), role: any(["producer", "consumer"]), status: any(["alive", "offline"]), name: "Name", node: "Node" },
  columns: [
    { title: "Name", sort: "name", cell: (row) => raw(row.name, { title: row.member }), href: (row) => (row.namespace === null ? undefined : `#/session?${new URLSearchParams({ namespace: row.namespace, client_id: row.name })}`) },
    { title: "Channel", sort: "channel", cell: (row) => raw(row.channel, { class: "raw mono clip" }) },
    { title: "Kind", sort: "kind", cell: (row) => pill(row.kind, "plain") },
    { title: "Role", sort: "role", cell: (row) => row.role },
    { title: "Status", sort: "status", cell: (row) => pill(row.waiting ? "waits for room" : row.status, row.waiting ? "warn" : row.status === "alive" ? "ok" : "plain") },
    { title: "In flight", number: true, cell: (row) => count(row.in_flight) },
    { title: "Claims", sort: "claims", number: true, cell: (row) => (row.claims === null ? NONE : `${count(row.claims)} of ${count(row.credit)}`) },
    { title: "Appends", sort: "appends", number: true, cell: (row) => count(row.appends) },
    { title: "Weight", sort: "weight", number: true, cell: (row) => count(row.weight) },
    { title: "Node", sort: "node_id", number: true, cell: (row) => count(row.node_id) },
    { title: "Lease", sort: "lease", cell: leaseCell },
    { title: "Keepalive lag", sort: "keepalive_lag_ms", number: true, cell: (row) => span(row.keepalive_lag_ms) },
    { title: "Since", sort: "since_ms", cell: (row) => timed(row.since_ms) },
  ],
};

function readOrder(text, fallback) {
  if (text === undefined) return fallback;
  return text.split(",").filter(Boolean).map((part) => part.split(":")).map(([name, way]) => [name, way === "asc" ? "asc" : "desc"]);
}

function writeOrder(order) {
  return order.map((part) => part.join(":")).join(",");
}

function controlsOf(kind, typed) {
  const control = (name, of) => (Array.isArray(of) ? select(name, of, "", typed) : input(name, { type: "search", placeholder: name === "name" ? "has in it…" : "any", on: { input: typed } }));
  return Object.fromEntries(Object.entries(kind.filters).map(([name, of]) => [name, control(name, of)]));
}

function view(kind) {
  return {
    mount: (main, parameters) => {
      let [wanted, turn, typing] = [parameters, 0, null];
      let order = readOrder(parameters.sort, kind.order);
      const typed = () => {
        clearTimeout(typing);
        typing = setTimeout(filter, 200);
      };
      const controls = controlsOf(kind, typed);
      const labels = Object.entries(kind.filters).map(([name, of]) => field(Array.isArray(of) ? words(name)[0].toUpperCase() + words(name).slice(1) : of, controls[name]));
      const said = el("div", { role: "alert" });
      const bar = el("div", { class: "sorts", role: "group", "aria-label": "Order" });
      const table = new Table({ label: kind.title, key: kind.key, columns: kind.columns, onsort: sort, empty: `No ${kind.what} fit.` });
      const pager = new Pager(() => polling.now());

      async function load() {
        const mine = (turn += 1);
        try {
          const { sort: _, ...filters } = wanted;
          const answer = await get(query(kind.path, { ...filters, sort: writeOrder(order), limit: LIMIT, cursor: pager.cursor }));
          if (mine !== turn) return;
          said.replaceChildren();
          table.setRows(answer[kind.rows]);
          pager.show(answer[kind.rows].length, answer.cursor, kind.what);
        } catch (error) {
          if (mine === turn && error.code) said.replaceChildren(notice("bad", "The list cannot be shown", error.message));
          throw error;
        }
      }

      function again() {
        go(kind.name, { ...wanted, sort: writeOrder(order) }, true);
        showOrder();
        pager.reset();
        load().catch(() => {});
      }

      function filter() {
        wanted = Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));
        again();
      }

      function sort(next) {
        const held = bar.contains(document.activeElement);
        order = next;
        again();
        if (held) bar.querySelector("select, button")?.focus();
      }

      function showOrder() {
        table.setOrder(order);
        bar.replaceChildren(...sorts(kind.columns, order, sort));
      }

      const fill = () => Object.entries(controls).forEach(([name, control]) => { control.value = wanted[name] ?? ""; });
      fill();
      showOrder();
      main.append(el("div", { class: "view-head" }, el("h1", {}, kind.title)),
        el("section", { class: "panel fresh" }, el("div", { class: "filters", role: "search" }, labels), bar, said, table.element, pager.element));
      const polling = poll(load, REFRESH_MS);
      return {
        stop: () => {
          clearTimeout(typing);
          polling.stop();
        },
        update: (next) => {
          wanted = next;
          order = readOrder(next.sort, kind.order);
          fill();
          showOrder();
          pager.reset();
          load().catch(() => {});
          return true;
        },
      };
    },
  };
}

export const channels = view(CHANNELS);
export const members = view(MEMBERS);
