// Nodes and their boots, and the retirement of a boot whose node is gone.

import { Problem, get, needs, poll, post } from "./api.js";
import { ask, notice } from "./dialog.js";
import { button, el, facts, field, pill, raw } from "./dom.js";
import { NONE, count, left, moment, span, words } from "./format.js";
import { timed } from "./sessions.js";
import { Table } from "./table.js";

const AGAIN_MS = 500;

function retired(answer) {
  const rows = answer.groups.map((group) => `Group ${group.group}: ${words(group.outcome)}${group.detail ? `, ${group.detail}` : ""}`);
  return notice("ok", answer.unchanged ? "It was retired before" : "Retired", `Proof: ${words(answer.retired_by)}. Its sessions may be taken over, its Wills and expiries run.`, ...rows);
}

function failure(error) {
  const advice = {
    alive: "A boot that answers, or renews its lease, is not retired. Stop the node in order instead.",
    own_boot: "A node does not retire itself: open the dashboard of another one.",
    no_fence_agent: "Configure isolation.fence_agent, or attest.",
    unproved: "The fence agent gave no proof: look at its output in the log.",
    partial: "Ask again: what is retired stays so.",
    busy: "Wait for the end of the one that is under way.",
  }[error.code];
  return error instanceof Problem ? notice("bad", `${error.status}: ${words(error.code)}`, error.message, advice)
    : notice("bad", "The node did not answer", error.message, "Repeating it is safe.");
}

/** Asks until it is done: a retirement goes on by itself, an answer of 202 says how long yet. */
async function retire(node_id, request, say) {
  for (;;) {
    const [status, answer] = await post(`/v1/nodes/${node_id}/retire`, request);
    if (status !== 202) return retired(answer);
    say(notice("warn", "Waiting for the end of its lease", `${span(answer.remaining_ms)} left. It goes on by itself, also when this is closed.`));
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

function retireDialog(node, boot, reload) {
  const attest = el("textarea", { name: "attest", rows: 2, maxlength: 1024, required: true, placeholder: "powered off by Ann at the rack, 14:20" });
  const proof = (value, text, hint, checked) => el("label", { class: "choice" }, el("input", { type: "radio", name: "proof", value, checked, on: { change: () => {
    attest.disabled = value !== "attest";
    attest.required = value === "attest";
  } } }), el("span", {}, text, el("span", { class: "hint" }, hint)));
  const body = el("div", { class: "stack" },
    el("p", {}, "Say this only when nothing of the node runs any more. Its sessions can then be taken over by other nodes."),
    facts([["Node", String(node.node_id)], ["Boot", el("span", { class: "mono" }, boot.boot_id)], ["Lease ends", left(boot.lease_until_ms)]]),
    el("fieldset", {}, el("legend", {}, "Proof"), proof("attest", "I attest it", "It is written to the audit log", true), proof("fence", "Fence agent", "Runs isolation.fence_agent; exit 0 is the proof")),
    field("How you know that nothing of it runs", attest, "One line"),
    el("label", { class: "choice" }, el("input", { type: "checkbox", name: "now", value: "yes" }), el("span", {}, "Do not wait for its lease", el("span", { class: "hint" }, "Trusts your word alone: should you be wrong, two nodes act for one session"))));
  ask({
    title: `Retire a boot of node ${node.node_id}`, body, action: "Retire", tone: "danger",
    closed: reload,
    submit: async (form, say) => {
      const request = { boot: boot.boot_id, now: form.has("now") };
      if (form.get("proof") === "attest") request.attest = form.get("attest").replaceAll(/\s+/g, " ").trim();
      else request.fence_agent = true;
      say(notice("warn", "Under way", "It waits until the lease of the boot is over."));
      try {
        return { done: true, node: await retire(node.node_id, request, say) };
      } catch (error) {
        return { done: false, node: failure(error) };
      }
    },
  });
}

function bootState(boot) {
  if (boot.retired_at_ms !== null) return pill("retired", "plain");
  return boot.current ? pill("current", "ok") : pill("not retired", "warn");
}

function bootTable(node, act) {
  return new Table({
    label: `Boots of node ${node.node_id}`, key: (boot) => boot.boot_id, empty: "No boots.",
    columns: [
      { title: "Boot", cell: (boot) => el("span", { class: "mono raw" }, boot.boot_id) },
      { title: "State", cell: bootState },
      { title: "Lease ends", cell: (boot) => el("span", { title: moment(boot.lease_until_ms) }, left(boot.lease_until_ms)) },
      { title: "Retired", cell: (boot) => (boot.retired_at_ms === null ? NONE : timed(boot.retired_at_ms)) },
      { title: "Proof", cell: (boot) => (boot.retired_by === null ? NONE : el("span", {}, words(boot.retired_by), boot.retired_because ? el("span", { class: "quiet-text" }, ": ", raw(boot.retired_because)) : "")) },
      { title: "Action", cell: (boot) => (boot.retired_at_ms !== null || node.local ? NONE : act(boot)) },
    ],
  });
}

function card(node) {
  const reach = el("span", {});
  const about = el("div", { class: "body" });
  const known = { node };
  const act = (boot) => button("Retire…", () => retireDialog(known.node, boot, known.reload), { class: "retire", "aria-label": `Retire boot ${boot.boot_id}`, ...needs("admin") });
  const boots = bootTable(node, act);
  const element = el("section", { class: "panel fresh", data: { node: node.node_id } },
    el("div", { class: "panel-head" }, el("h2", {}, `Node ${node.node_id}`, node.local ? el("span", { class: "quiet-text" }, " · this one") : ""), reach), about, boots.element);
  const show = (now, member) => {
    known.node = now;
    const reachable = member ? member.reachable : now.local;
    reach.replaceChildren(!member && !now.local ? pill("not a member", "plain") : reachable ? pill("reachable", "dot ok") : pill("not reachable", "dot bad"));
    about.replaceChildren(facts([
      ["Address", member?.address ? raw(member.address) : NONE],
      now.local && ["Version", now.version ?? NONE], now.local && ["Connections", count(now.connections)],
      now.local && ["Running since", el("span", { title: moment(now.started_at_ms) }, timed(now.started_at_ms))]], "across"));
    boots.setRows(now.boots);
  };
  return { element, show, known };
}

export function mount(main, parameters) {
  const cards = new Map();
  const list = el("div", { class: "stack" });
  main.append(el("div", { class: "view-head" }, el("h1", {}, "Nodes")), list,
    el("p", { class: "hint" }, "A boot is one start of a node. Until a boot is retired, its sessions stay with it: nobody else may act for them."));
  const load = async () => {
    const [{ nodes }, cluster] = await Promise.all([get("/v1/nodes"), get("/v1/cluster")]);
    const members = new Map(cluster.nodes.map((member) => [member.node_id, member]));
    for (const node of nodes) {
      if (!cards.has(node.node_id)) {
        const made = card(node);
        made.known.reload = () => polling.now();
        cards.set(node.node_id, made);
        list.append(made.element);
      }
      cards.get(node.node_id).show(node, members.get(node.node_id));
    }
    const wanted = parameters.node && cards.get(Number(parameters.node));
    if (wanted) wanted.element.scrollIntoView({ block: "start" });
    parameters = {};
  };
  const polling = poll(load, 3_000);
  return { stop: () => polling.stop() };
}
