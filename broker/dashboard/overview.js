// The overview: what passes, how quickly, who is there, and whether the cluster stands.

import { get, poll, readiness } from "./api.js";
import { notice } from "./dialog.js";
import { el, pill, write } from "./dom.js";
import { item } from "./events.js";
import { NONE, byteRate, bytes, count, percent, rate, seconds, short, words } from "./format.js";
import { Spark } from "./spark.js";
import { Table } from "./table.js";

const EVENTS_SHOWN = 13;
/** Latencies are those of the last so many seconds. */
const WINDOW_S = 60;

/** A tile: its figures get the newest look, what happened since the one before, and in the window. */
const TILES = [
  ["Messages", "per second", [
    ["in", (_, last) => last?.rate("exactmq_messages_total", { direction: "in" }) ?? null, rate],
    ["out", (_, last) => last?.rate("exactmq_messages_total", { direction: "out" }) ?? null, rate]]],
  ["MQTT packets", "per second", [
    ["in", (_, last) => last?.rate("exactmq_packets_total", { direction: "in" }) ?? null, rate],
    ["out", (_, last) => last?.rate("exactmq_packets_total", { direction: "out" }) ?? null, rate]]],
  ["Traffic", "bytes", [
    ["in", (_, last) => last?.rate("exactmq_packet_bytes_total", { direction: "in" }) ?? null, byteRate],
    ["out", (_, last) => last?.rate("exactmq_packet_bytes_total", { direction: "out" }) ?? null, byteRate]]],
  ["Commit", "last minute", [
    ["p50", (_, __, window) => window?.quantile("exactmq_commit_seconds", 0.5) ?? null, seconds],
    ["p99", (_, __, window) => window?.quantile("exactmq_commit_seconds", 0.99) ?? null, seconds]]],
  ["Connections", "this node", [
    ["open", (look) => look.sum("exactmq_connections"), short],
    ["opened", (_, last) => last?.rate("exactmq_connections_opened_total") ?? null, rate]]],
  ["Takeover", "last minute", [
    ["p99", (_, __, window) => window?.quantile("exactmq_takeover_seconds", 0.99) ?? null, seconds],
    ["rate", (_, last) => last?.rate("exactmq_takeover_seconds_count") ?? null, rate]]],
  ["Inbox backlog", "cluster", [
    ["messages", (look) => look.sum("exactmq_inbox_messages"), short],
    ["bytes", (look) => look.sum("exactmq_inbox_bytes"), bytes]]],
  ["Dropped", "messages here", [
    ["now", (_, last) => last?.rate("exactmq_messages_dropped_total") ?? null, rate],
    ["since start", (look) => look.sum("exactmq_messages_dropped_total"), short]]],
];

class Tile {
  constructor([title, of, figures]) {
    this.figures = figures;
    this.values = figures.map(() => el("b", {}, NONE));
    this.spark = new Spark(figures.length);
    // Two figures of different units do not share a scale: the first one is drawn.
    this.drawn = figures[0][2] === figures[1][2] ? 2 : 1;
    this.element = el("section", { class: "tile" },
      el("h2", {}, title, el("span", { class: "of" }, of)),
      el("div", { class: "figures" }, figures.map(([name], at) =>
        el("div", { class: `figure line-${at} ${at < this.drawn ? "" : "no-line"}` }, this.values[at], el("span", {}, name)))),
      this.spark.element);
  }

  /** Shows a look, the newest or the one at `at`. */
  show(looks, at) {
    const [last, window] = [looks.last(0, at), looks.last(WINDOW_S, at)];
    const values = this.figures.map(([, of]) => of(looks.all.at(at ?? -1), last, window));
    values.forEach((value, nth) => write(this.values[nth], value === null ? NONE : this.figures[nth][2](value)));
    this.spark.add(values.slice(0, this.drawn));
  }
}

function healthPanel() {
  const body = el("div", { class: "body stack" });
  const verdict = el("span", {});
  const element = el("section", { class: "panel" }, el("div", { class: "panel-head" }, el("h2", {}, "Health"), verdict), body);
  const show = (ready, cluster) => {
    const bad = ready.failing;
    const away = cluster.nodes.filter((one) => !one.reachable).map((one) => one.node_id);
    const led = cluster.groups.filter((group) => group.leader !== null).length;
    const tone = !ready.ready ? "bad" : away.length ? "warn" : "ok";
    verdict.replaceChildren(pill(!ready.ready ? "Not ready" : away.length ? "Serves, a node is away" : "Healthy", `dot ${tone}`));
    body.replaceChildren(
      ...bad.map((one) => notice("bad", `Check ${one.check} fails`, one.detail)),
      away.length ? notice("warn", `Node ${away.join(", ")} cannot be reached`, "Its sessions stay with it until it is back or its boot is retired: see Nodes.") : "",
      el("div", { class: "meters" },
        meter("Cluster", cluster.state),
        meter("Nodes reachable", `${cluster.nodes.length - away.length} of ${cluster.nodes.length}`),
        meter("Groups with a leader", `${led} of ${cluster.groups.length}`),
        meter("Entries not applied here", count(cluster.groups.reduce((sum, group) => sum + group.lag, 0)))));
  };
  return { element, show };
}

function meter(name, value) {
  return el("div", { class: "meter" }, el("span", { class: "quiet-text" }, name), el("b", {}, value));
}

function groupTable() {
  return new Table({
    label: "Replication groups", key: (group) => group.group, empty: "No groups.",
    columns: [
      { title: "Group", cell: (group) => `Group ${group.group}` },
      { title: "Leader", cell: (group) => (group.leader === null ? pill("nobody", "bad") : `node ${group.leader}`) },
      { title: "Here", cell: (group) => words(group.role) },
      { title: "Voters", cell: (group) => group.voters.join(", ") || NONE },
      { title: "Term", number: true, cell: (group) => count(group.term) },
      { title: "Last entry", number: true, cell: (group) => count(group.last_index) },
      { title: "Lag", number: true, cell: (group) => count(group.lag) },
    ],
  });
}

export function mount(main, _parameters, shell) {
  const tiles = TILES.map((tile) => new Tile(tile));
  const health = healthPanel();
  const groups = groupTable();
  const numbers = el("div", { class: "body meters" });
  const drops = el("div", { class: "body meters" });
  const recent = el("ol", { class: "feed short-feed" });
  main.append(
    el("div", { class: "view-head" }, el("h1", {}, "Overview")),
    el("div", { class: "tiles fresh" }, tiles.map((tile) => tile.element)),
    el("div", { class: "columns fresh" }, el("div", { class: "stack" }, health.element,
      el("section", { class: "panel" }, el("h2", {}, "Sessions and store"), numbers)),
    el("section", { class: "panel" }, el("div", { class: "panel-head" }, el("h2", {}, "Latest events"), el("a", { href: "#/events" }, "All")), recent)),
    el("section", { class: "panel fresh" }, el("h2", {}, "Replication groups"), groups.element),
    el("section", { class: "panel fresh" }, el("h2", {}, "Dropped messages since the start, by reason"), drops));

  const showLook = () => {
    const { looks } = shell;
    if (!looks.newest) return;
    tiles.forEach((tile) => tile.show(looks));
    numbers.replaceChildren(...stored(looks));
    drops.replaceChildren(...dropped(looks.newest));
  };
  const nothing = el("li", {}, el("span", { class: "what quiet-text" }, "Nothing happened yet."));
  const tellEvent = (event) => {
    if (!event) return;
    nothing.remove();
    recent.prepend(item(event));
    if (recent.children.length > EVENTS_SHOWN) recent.lastChild.remove();
  };
  shell.lookers.add(showLook);
  shell.feed.listeners.add(tellEvent);
  // What was looked at while another view was shown.
  shell.looks.all.slice(0, -1).forEach((_, at) => tiles.forEach((tile) => tile.show(shell.looks, at)));
  showLook();
  recent.append(nothing);
  shell.feed.events.slice(-EVENTS_SHOWN).forEach(tellEvent);
  const polling = poll(async () => {
    const [ready, cluster] = await Promise.all([readiness(), get("/v1/cluster")]);
    health.show(ready, cluster);
    groups.setRows(cluster.groups);
  }, 3_000);
  return {
    stop: () => {
      polling.stop();
      shell.lookers.delete(showLook);
      shell.feed.listeners.delete(tellEvent);
    },
  };
}

function stored(looks) {
  const look = looks.newest;
  const window = looks.last(WINDOW_S);
  const state = (name) => short(look.sum("exactmq_sessions", { state: name }));
  return [
    meter("Sessions active / offline / ended", `${state("active")} / ${state("offline")} / ${state("ended")}`),
    meter("Subscriptions routed here", short(look.sum("exactmq_subscriptions"))),
    meter("Retained messages", short(look.sum("exactmq_retained_messages"))),
    meter("Messages stored, each once", short(look.sum("exactmq_messages_stored"))),
    meter("Wills waiting or ready", short(look.sum("exactmq_will_backlog", { state: "waiting" }) + look.sum("exactmq_will_backlog", { state: "ready" }))),
    meter("Fsync, p99 of the last minute", seconds(window?.quantile("exactmq_fsync_seconds", 0.99) ?? null)),
    meter("Workers busy", percent(window ? window.rate("exactmq_worker_busy_seconds_total") / Math.max(1, look.series("exactmq_worker_busy_seconds_total").length) : null)),
    meter("Slow operations since start", short(look.sum("exactmq_slow_operations_total"))),
  ];
}

function dropped(look) {
  const some = look.series("exactmq_messages_dropped_total").filter(({ value }) => value > 0);
  if (!some.length) return [el("span", { class: "quiet-text" }, "None.")];
  return some.map(({ labels, value }) => meter(words(labels.reason), count(value)));
}
