// The frame: entry, navigation, theme, and what all views share.

import { Problem, get, getText, may, me, node, poll, signIn, token, whoami } from "./api.js";
import { notice } from "./dialog.js";
import { button, el, field, icon, input, write } from "./dom.js";
import * as events from "./events.js";
import { Feed } from "./feed.js";
import { clock } from "./format.js";
import { Looks } from "./metrics.js";
import * as nodes from "./nodes.js";
import * as overview from "./overview.js";
import { channels, members } from "./queues.js";
import * as session from "./session.js";
import * as sessions from "./sessions.js";

const VIEWS = { overview, sessions, nodes, channels, members, events, session };
const NAMED = ["overview", "sessions", "nodes", "channels", "members", "events"];
const LOOK_MS = 2_000;
const THEME = "exactmq.theme";

const app = document.getElementById("app");
let signedIn = null;

function brand() {
  return el("div", { class: "brand" }, Object.assign(el("img", { alt: "", width: 24, height: 24 }), { src: "/assets/icon.svg" }), "ExactMQ");
}

function showTheme() {
  const theme = localStorage.getItem(THEME);
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** What is seen now turned around; back at what the system wants, nothing is kept. */
function turnTheme() {
  const wanted = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const seen = document.documentElement.dataset.theme ?? wanted;
  const next = seen === "dark" ? "light" : "dark";
  if (next === wanted) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, next);
  showTheme();
}

function themeButton() {
  return button("", turnTheme, { class: "quiet square", "aria-label": "Switch between light and dark", title: "Light or dark" });
}

function entry(why) {
  leave();
  document.title = "Sign in · ExactMQ";
  const said = el("div", { role: "alert" }, why ? notice("bad", "The token is not valid any more", why) : null);
  const control = input("token", { type: "password", required: true, autocomplete: "off" });
  const go = el("button", { type: "submit", class: "primary" }, "Open");
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await signIn(control.value.trim());
      enter();
    } catch (error) {
      const wrong = error instanceof Problem && error.status === 401;
      said.replaceChildren(notice("bad", wrong ? "Wrong token" : "Not let in", error.message));
      control.select();
    } finally {
      go.disabled = false;
    }
  };
  const form = el("form", { on: { submit } }, brand(),
    el("h1", {}, "Admin token"),
    el("p", {}, "The first start of the node wrote it to ", el("code", {}, "admin.token"), " in its data directory; ", el("code", {}, "exactmq token add"), " makes further ones. It stays in this tab and is forgotten with it."),
    field("Token", control), said, go);
  app.replaceChildren(el("main", { class: "entry" }, form));
  control.focus();
}

function leave() {
  signedIn?.stop();
  signedIn = null;
}

function enter() {
  leave();
  signedIn = new Shell();
}

/** With the token that this tab has: what it is good for is asked first. */
async function resume() {
  try {
    await whoami();
  } catch (error) {
    if (error instanceof Problem && error.status === 401) return entry(error.message);
    // A node that does not answer is shown as such, and is asked again.
  }
  return enter();
}

class Shell {
  constructor() {
    this.feed = new Feed();
    this.looks = new Looks();
    this.lookers = new Set();
    this.view = null;
    this.links = new Map(NAMED.map((name) => [name, el("a", { href: `#/${name}` }, icon(name), name[0].toUpperCase() + name.slice(1))]));
    this.main = el("main", { id: "main", tabindex: "-1" });
    this.standing = el("span", { class: "pill dot ok standing", role: "status" }, "Live");
    this.where = el("div", { class: "where" });
    const theme = themeButton();
    theme.append(icon("theme"));
    const out = button("", () => { token.forget(); entry(); }, { class: "quiet square", "aria-label": "Sign out: forget the token", title: "Forget the token" });
    out.append(icon("leave"));
    const skip = el("a", { class: "skip", href: "#main", on: { click: (event) => { event.preventDefault(); this.main.focus(); } } }, "Skip to the content");
    app.replaceChildren(skip,
      el("header", { class: "top" }, brand(), this.where, el("div", { class: "end" }, this.standing, theme, out)),
      el("div", { class: "frame" },
        el("nav", { class: "views", "aria-label": "Views" }, el("ul", {}, [...this.links.values()].map((link) => el("li", {}, link)))),
        this.main));
    this.heard = () => this.showStanding();
    node.listeners.add(this.heard);
    this.route = () => this.show();
    addEventListener("hashchange", this.route);
    this.looking = poll(() => this.look(), LOOK_MS);
    this.telling = poll(() => this.tellWhere(), 30_000);
    this.show();
    this.showStanding();
  }

  stop() {
    this.view?.stop();
    this.looking.stop();
    this.telling.stop();
    this.feed.stop();
    node.listeners.delete(this.heard);
    removeEventListener("hashchange", this.route);
  }

  async look() {
    this.looks.add(await getText("/metrics"));
    for (const looker of this.lookers) looker();
  }

  async tellWhere() {
    await whoami();
    const own = (await get("/v1/nodes")).nodes.find((one) => one.local);
    if (!own) return;
    const who = may("admin") ? "" : ` · ${me.name}, ${me.role}`;
    this.where.replaceChildren(`node ${own.node_id}`, el("span", { class: "wordy" }, ` · version ${own.version}${who}`));
  }

  showStanding() {
    const stale = node.staleSince;
    write(this.standing, stale ? `Stale since ${clock(stale)}` : "Live");
    this.standing.className = `pill dot standing ${stale ? "bad" : "ok"}`;
    this.standing.title = stale ? "The node does not answer; what is shown is from then. It is asked again and again." : "The node answers";
    app.classList.toggle("stale", Boolean(stale));
  }

  show() {
    const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
    const name = Object.hasOwn(VIEWS, path) ? path : "overview";
    const parameters = Object.fromEntries(new URLSearchParams(search ?? ""));
    for (const [known, link] of this.links) {
      const current = known === name || (name === "session" && known === "sessions");
      if (!current) {
        link.removeAttribute("aria-current");
        continue;
      }
      link.setAttribute("aria-current", "page");
      const strip = link.closest("nav");
      strip.scrollLeft = link.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
    }
    if (this.view?.name === name && this.view.update?.(parameters)) return;
    const moved = Boolean(this.view);
    this.view?.stop();
    document.title = `${name[0].toUpperCase()}${name.slice(1)} · ExactMQ`;
    this.main.replaceChildren();
    this.view = { name, ...VIEWS[name].mount(this.main, parameters, this) };
    scrollTo(0, 0);
    if (moved) this.main.focus({ preventScroll: true });
  }
}

/** Leads to a view; the same view with other parameters is told, not made anew. */
export function go(name, parameters = {}, replace = false) {
  const search = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  const hash = `#/${name}${search.size ? `?${search}` : ""}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else location.hash = hash;
}

node.wants = (why) => signedIn && entry(why);
showTheme();
if (token.get()) resume();
else entry();
