// The live feed as a list, and what each kind of event says.

import { button, el, input, pill, raw, write } from "./dom.js";
import { clock, count, moment, words } from "./format.js";

const TONES = {
  connect: "ok", disconnect: "plain", refused: "warn", takeover: "accent", end: "warn", retired: "warn",
  node_up: "ok", node_down: "bad", leader: "accent", overload: "bad", load: "warn", skipped: "plain",
};

export function sessionLink(namespace, client_id) {
  const search = new URLSearchParams({ namespace, client_id });
  return el("a", { href: `#/session?${search}` }, raw(client_id));
}

function said(event) {
  const { kind, namespace, client_id, user, node_id, detail } = event;
  const who = client_id === null ? "a client without a name" : sessionLink(namespace, client_id);
  const by = user === null ? "" : el("span", { class: "quiet-text" }, "user ", raw(user));
  const took = event.took_ms === null ? "" : event.took_ms < 1 ? " within 1 ms" : ` in ${count(event.took_ms)} ms`;
  switch (kind) {
    case "connect": return [who, ` connected, ${detail === "resumed" ? "session resumed" : "new session"}`, by];
    case "disconnect": return [who, detail === "normal" ? " disconnected" : ` is gone (${words(detail)})`, by];
    case "refused": return [who, ` was refused: ${words(detail)}`, by];
    case "takeover": return [who, detail === "done" ? ` taken over from node ${node_id}${took}` : ` not taken over from node ${node_id}: ${words(detail)}${took}`, by];
    case "end": return [who, ` was ended: ${words(detail)}`, by];
    case "retired": return [`A boot of node ${node_id} was retired: ${words(detail)}`];
    case "node_up": return [`Node ${node_id} can be reached`];
    case "node_down": return [`Node ${node_id} cannot be reached`];
    case "leader": return [node_id === null ? `Group ${detail} has no leader` : `Node ${node_id} leads group ${detail}`];
    case "overload": return [`${count(event.count)} messages dropped within a second: ${words(detail)}`];
    case "load": return [`Node ${node_id} is ${detail === "normal" ? "not loaded any more" : words(detail)}`];
    case "skipped": return [`${count(event.count)} more of ${words(detail)} are not shown`];
    default: return [words(kind)];
  }
}

export function item(event) {
  return el("li", { data: { kind: event.kind } }, el("time", { title: moment(event.at_ms) }, clock(event.at_ms)),
    el("span", {}, pill(words(event.kind), TONES[event.kind] ?? "plain")), el("span", { class: "what" }, said(event)));
}

function standing(feed) {
  const text = { live: "Following", connecting: "Connecting…", full: "Too many are watching", stopped: "Stopped" }[feed.state];
  return [text, feed.state === "live" ? "ok" : "warn"];
}

export function mount(main, _parameters, shell) {
  const { feed } = shell;
  const hidden = new Set();
  let [held, from, text] = [null, 0, ""];
  const list = el("ol", { class: "feed long-feed", "aria-label": "Events, newest first" });
  const state = el("span", { class: "pill dot", role: "status" });
  const gap = el("span", { class: "quiet-text" });
  const pause = button("Pause", () => {
    held = held ? null : [...feed.events];
    pause.textContent = held ? "Go on" : "Pause";
    show();
  });
  const clear = button("Clear", () => {
    from = feed.events.at(-1)?.seq ?? 0;
    if (held) held = [];
    show();
  });
  const kinds = Object.keys(TONES).map((kind) => button(words(kind), (event) => {
    if (!hidden.delete(kind)) hidden.add(kind);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(kind)));
    show();
  }, { class: "chip", "aria-pressed": "true" }));
  const search = input("event-text", { type: "search", placeholder: "ClientID or user", "aria-label": "Only events with this ClientID or user",
    on: { input: (event) => { text = event.target.value.toLowerCase(); show(); } } });

  const wanted = (event) => event.seq > from && !hidden.has(event.kind)
    && (!text || [event.client_id, event.user].some((one) => one?.toLowerCase().includes(text)));

  function show() {
    const rows = (held ?? feed.events).filter(wanted).reverse();
    list.replaceChildren(...(rows.length ? rows.map(item) : [el("li", {}, el("span", { class: "what quiet-text" }, "Nothing to show."))]));
  }

  function tell(event) {
    const [words_, tone] = standing(feed);
    write(state, words_);
    state.className = `pill dot ${tone}`;
    write(gap, feed.missed || feed.dropped ? `${count(feed.missed)} events missed in breaks` : "");
    if (!event || held || !wanted(event)) return;
    if (!feed.events.length || list.firstChild?.dataset.kind === undefined) return show();
    list.prepend(item(event));
    if (list.children.length > 500) list.lastChild.remove();
  }

  feed.listeners.add(tell);
  main.append(
    el("div", { class: "view-head" }, el("h1", {}, "Events"), state, gap, el("div", { class: "end" }, pause, clear)),
    el("section", { class: "panel" },
      el("div", { class: "filters" }, search),
      el("div", { class: "sorts", role: "group", "aria-label": "Kinds that are shown" }, kinds), list),
    el("p", { class: "hint" }, "What happens on this node, as it happens. Each node tells its own; at most 100 a second of one kind."));
  tell(null);
  show();
  return { stop: () => feed.listeners.delete(tell) };
}
