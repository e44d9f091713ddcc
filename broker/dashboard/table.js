// Tables that keep their rows: what did not change is not touched, so that focus, selection and scroll stay where they are.

import { button, el, select } from "./dom.js";
import { NONE } from "./format.js";

export const SORT_MAX = 4;

/**
 * Columns: { id, title, number, cell(row) -> text or node, sort: name in the API, href(row) of the first }.
 * A row is opened by Enter or a click; the arrow keys go from one to the next.
 */
export class Table {
  constructor({ columns, label, key, empty, onsort }) {
    Object.assign(this, { columns, key, onsort, order: [], shown: new Map() });
    this.heads = columns.map((column) => this.head(column));
    this.body = el("tbody", { role: "rowgroup", on: { keydown: (event) => this.move(event), click: open } });
    const table = el("table", { class: "cards", role: "table", "aria-label": label },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, this.heads)), this.body);
    this.empty = el("p", { class: "empty", hidden: true }, empty);
    this.element = el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table), this.empty);
  }

  head(column) {
    const attributes = { role: "columnheader", scope: "col", class: column.number ? "number" : "" };
    if (!column.sort) return el("th", attributes, column.title);
    const title = `Sort by ${column.title.toLowerCase()}; with Shift after the columns before`;
    const turn = (event) => this.turn(column.sort, event.shiftKey);
    return el("th", { ...attributes, data: { sort: column.sort } },
      el("button", { type: "button", title, on: { click: turn } }, column.title, el("span", { class: "arrow", "aria-hidden": "true" })));
  }

  /** Up, down, not at all. Alone it replaces the order; with Shift it comes after. */
  turn(name, after) {
    const known = this.order.find(([column]) => column === name);
    const next = !known ? "desc" : known[1] === "desc" ? "asc" : null;
    let order = after ? [...this.order] : this.order.filter(([column]) => column === name);
    if (!known) order.push([name, next]);
    else order = next ? order.map((one) => (one[0] === name ? [name, next] : one)) : order.filter(([column]) => column !== name);
    this.onsort(order.slice(0, SORT_MAX));
  }

  setOrder(order) {
    this.order = order;
    for (const head of this.heads) {
      const at = order.findIndex(([name]) => name === head.dataset.sort);
      if (!head.dataset.sort) continue;
      if (at < 0) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order[at][1] === "asc" ? "ascending" : "descending");
      const arrow = at < 0 ? "" : `${order[at][1] === "asc" ? "↑" : "↓"}${order.length > 1 ? at + 1 : ""}`;
      head.querySelector(".arrow").textContent = arrow;
    }
  }

  setRows(rows) {
    const before = this.shown;
    this.shown = new Map(rows.map((row) => [this.key(row), before.get(this.key(row)) ?? this.row(row)]));
    // First, so that nothing that stays has to move: an element that moves loses the focus.
    for (const [key, { element }] of before) if (!this.shown.has(key)) element.remove();
    rows.forEach((row, at) => {
      const kept = this.shown.get(this.key(row));
      this.update(kept, row);
      if (this.body.children[at] !== kept.element) this.body.insertBefore(kept.element, this.body.children[at] ?? null);
    });
    this.empty.hidden = rows.length > 0;
  }

  row(row) {
    const cells = this.columns.map((column) =>
      el("td", { role: "cell", class: column.number ? "number" : "", data: { label: column.title } }));
    const opens = this.columns[0].href?.(row);
    return { element: el("tr", { role: "row", class: opens ? "opens" : "" }, cells), cells };
  }

  update(kept, row) {
    this.columns.forEach((column, at) => {
      const content = column.cell(row) ?? NONE;
      const node = content instanceof Node ? content : document.createTextNode(content);
      const cell = kept.cells[at];
      cell.toggleAttribute("data-none", at > 0 && content === NONE);
      const slot = this.slot(cell, column.href?.(row));
      if (!slot.firstChild?.isEqualNode(node)) slot.replaceChildren(node);
    });
  }

  /** Where the content of a cell stands: in its link, which stays the same element, or in the cell itself. */
  slot(cell, href) {
    if (!href) return cell;
    if (!cell.firstChild) cell.append(el("a", { class: "name", href }));
    if (cell.firstChild.getAttribute("href") !== href) cell.firstChild.setAttribute("href", href);
    return cell.firstChild;
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("a.name")) return;
    const links = [...this.body.querySelectorAll("a.name")];
    const to = links[links.indexOf(event.target) + step];
    if (to) {
      to.focus();
      event.preventDefault();
    }
  }
}

/** A click anywhere in a row is one on its link. */
function open(event) {
  if (event.target.closest("a, button, input, select") || getSelection()?.toString()) return;
  event.target.closest("tr.opens")?.querySelector("a.name")?.click();
}

/** The order in words, for hands without a mouse and for narrow screens. */
export function sorts(columns, order, onsort) {
  const titles = new Map(columns.filter((column) => column.sort).map((column) => [column.sort, column.title]));
  const chips = order.map(([name, way]) => el("span", { class: "sort" },
    button(`${titles.get(name) ?? name} ${way === "asc" ? "↑" : "↓"}`, () =>
      onsort(order.map((one) => (one[0] === name ? [name, way === "asc" ? "desc" : "asc"] : one))),
    { class: "chip", "aria-pressed": "true", "aria-label": `${titles.get(name) ?? name}, ${way === "asc" ? "ascending" : "descending"}: turn around` }),
    button("×", () => onsort(order.filter((one) => one[0] !== name)), { class: "quiet square chip-x", "aria-label": `Do not sort by ${titles.get(name) ?? name}` })));
  const rest = [...titles].filter(([name]) => !order.some((one) => one[0] === name));
  const more = order.length < SORT_MAX && select("add-sort", [["", order.length ? "then by…" : "choose a column…"], ...rest], "", (name) => name && onsort([...order, [name, "desc"]]));
  if (more) more.setAttribute("aria-label", "Add a column to sort by");
  return ["Sorted by", ...(order.length || more ? [] : ["nothing"]), ...chips, more || null].filter(Boolean);
}

/** Pages forth by cursor, and back by what was seen. */
export class Pager {
  constructor(onturn) {
    Object.assign(this, { onturn, behind: [], cursor: "", next: null });
    this.text = el("span", {});
    this.back = button("Previous", () => this.go(-1));
    this.forth = button("Next", () => this.go(1));
    this.element = el("div", { class: "pager" }, this.text, el("div", { class: "end" }, this.back, this.forth));
  }

  reset() {
    Object.assign(this, { behind: [], cursor: "", next: null });
  }

  go(way) {
    if (way > 0) this.behind.push(this.cursor);
    this.cursor = way > 0 ? this.next : this.behind.pop() ?? "";
    this.onturn();
  }

  show(rows, next, what) {
    this.next = next;
    this.back.disabled = this.behind.length === 0;
    this.forth.disabled = next === null;
    this.text.textContent = `Page ${this.behind.length + 1} · ${rows} ${what}${next ? ", more behind" : ""}`;
  }
}
