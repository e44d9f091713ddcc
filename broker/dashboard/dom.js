// Elements out of plain values. Whatever a client called itself arrives here as a string and becomes a text node: there is no other way in.

const SVG = "http://www.w3.org/2000/svg";

function set(node, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "on") {
    for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
  } else if (name === "data") {
    for (const [key, text] of Object.entries(value)) node.dataset[key] = text;
  } else if (/^(on|style|src)/.test(name)) {
    throw new Error(`attribute ${name} is not set from here`);
  } else if (name === "href" && !/^[#/]/.test(value)) {
    throw new Error("a link leads elsewhere");
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Text that somebody else chose: it cannot turn around what stands beside it. */
export function raw(text, attributes = {}) {
  return el("bdi", { class: "raw", title: text, ...attributes }, text);
}

/** Changes the text only when it is another one, so that nothing is announced or laid out anew. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function pill(text, tone = "plain") {
  return el("span", { class: `pill ${tone}` }, text);
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", on: { click: onclick }, ...attributes }, text);
}

/** A label above a control. */
export function field(text, control, hint) {
  return el("label", { class: "field" }, el("span", { class: "label" }, text), control, hint && el("span", { class: "hint" }, hint));
}

export function select(name, options, value, onchange) {
  const control = el("select", { name, on: { change: () => onchange?.(control.value) } },
    options.map(([word, text]) => el("option", { value: word }, text)));
  control.value = value ?? "";
  return control;
}

export function input(name, attributes = {}) {
  return el("input", { name, autocomplete: "off", spellcheck: "false", ...attributes });
}

/** Names and values. A value is text or a node. */
export function facts(pairs, more = "") {
  return el("dl", { class: `facts ${more}` }, pairs.filter(Boolean).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

const ICONS = {
  overview: "M3 13h4v5H3zM8.5 7h4v11h-4zM14 3h4v15h-4z",
  sessions: "M3 4h15v3H3zM3 9h15v3H3zM3 14h15v3H3z",
  nodes: "M4 3h13v6H4zM4 11h13v6H4zM6 5.5h2M6 13.5h2",
  channels: "M3 6h9l4 4.5-4 4.5H3l3-4.5z",
  members: "M7 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2 17c0-3 2-5 5-5s5 2 5 5zM14 9.5a2.5 2.5 0 1 0 0-5M13.5 12c3 0 5 2 5 5",
  events: "M2 11h4l2.500-7 4 13 2.500-6h4",
  theme: "M10.500 3a7.500 7.500 0 1 0 0 15zM10.500 3a7.500 7.500 0 0 1 0 15",
  leave: "M9 4H4v13h5M8 10.500h9M14 7l3.500 3.500L14 14",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 21 21", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}
