// The calls. The token lives in this tab's sessionStorage, and goes into a header, never into a URL.

const KEY = "exactmq.token";
const READ_MS = 10_000;
const CHANGE_MS = 40_000;

/** An answer of the node that is an error: `application/problem+json`. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `status ${status}`);
    Object.assign(this, { status, code: body.code || "unknown", body });
  }
}

/** No answer at all. */
export class Unreachable extends Error {}

export const node = {
  /** When the node answered last; what is shown is as old. */
  answeredAt: null,
  staleSince: null,
  listeners: new Set(),
  wants: null,
};

function heard(ok) {
  const before = node.staleSince;
  if (ok) {
    node.answeredAt = Date.now();
    node.staleSince = null;
  } else {
    node.staleSince ??= node.answeredAt ?? Date.now();
  }
  if (before !== node.staleSince) for (const listener of node.listeners) listener();
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

export function authorized(more = {}) {
  return { Authorization: `Bearer ${token.get() ?? ""}`, ...more };
}

/** Nobody with this token: the page asks for another one. */
function refused(problem) {
  token.forget();
  node.wants?.(problem.message);
}

async function send(method, path, body, wait) {
  const options = { method, headers: authorized(), cache: "no-store", signal: AbortSignal.timeout(wait) };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  try {
    const response = await fetch(path, options);
    const text = await response.text();
    heard(true);
    return [response, text];
  } catch (error) {
    heard(false);
    throw new Unreachable(error.name === "TimeoutError" ? "The node did not answer in time." : "The node cannot be reached.");
  }
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

async function call(method, path, body, wait) {
  const [response, text] = await send(method, path, body, wait);
  if (response.ok) return [response.status, text];
  const problem = new Problem(response.status, read(text));
  if (response.status === 401) refused(problem);
  throw problem;
}

export async function get(path) {
  const [, text] = await call("GET", path, undefined, READ_MS);
  return JSON.parse(text);
}

export async function getText(path) {
  const [, text] = await call("GET", path, undefined, READ_MS);
  return text;
}

/** The status, and what was answered. */
export async function post(path, body) {
  const [status, text] = await call("POST", path, body, CHANGE_MS);
  return [status, read(text)];
}

const ROLES = ["viewer", "operator", "admin"];

/** Whose token it is, and what it is good for. */
export const me = { name: null, role: ROLES[0] };

export async function whoami() {
  Object.assign(me, await get("/v1/whoami"));
}

/** Whether the token is good for what needs this role. The node decides; this only spares the question. */
export function may(role) {
  return ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

/** Attributes of a button that needs a role. */
export function needs(role) {
  return may(role) ? {} : { disabled: true, title: `Needs a token with the role ${role}; this one is a ${me.role}` };
}

/** Asks whether the token is one of the node's, and keeps it if so; else the problem is thrown. */
export async function signIn(text) {
  token.set(text);
  try {
    await whoami();
  } catch (error) {
    token.forget();
    throw error;
  }
}

/** Whether the node is ready, and what is wrong if not. */
export async function readiness() {
  try {
    const answer = await get("/health/ready");
    return { ready: true, checks: answer.checks, failing: [] };
  } catch (error) {
    if (error instanceof Problem && error.code === "not_ready") {
      return { ready: false, checks: [], failing: error.body.failing ?? [] };
    }
    throw error;
  }
}

/** Query parameters without the empty ones. */
export function query(path, parameters) {
  const search = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return search.size ? `${path}?${search}` : path;
}

/** Runs `work` now and then every `ms` while the page is seen, one at a time, until the answer is called. */
export function poll(work, ms) {
  let [stopped, timer, running] = [false, null, false];
  const turn = async () => {
    clearTimeout(timer);
    if (stopped || running) return;
    running = true;
    try {
      if (!document.hidden) await work();
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
    } finally {
      running = false;
      if (!stopped) timer = setTimeout(turn, ms);
    }
  };
  const seen = () => document.hidden || turn();
  document.addEventListener("visibilitychange", seen);
  turn();
  return {
    now: turn,
    stop: () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
