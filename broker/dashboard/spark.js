// Sparklines: inline SVG, drawn from numbers; the figures beside them say the same in text.

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [200, 40];
const POINTS = 90;

export class Spark {
  constructor(lines) {
    this.values = Array.from({ length: lines }, () => []);
    this.areas = this.values.map((_, line) => svg("path", { class: `area line-${line}` }));
    this.paths = this.values.map((_, line) => svg("path", { class: `line line-${line}` }));
    this.element = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("path", { class: "ground", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }), this.areas, this.paths);
  }

  add(values) {
    values.forEach((value, line) => {
      this.values[line].push(value);
      if (this.values[line].length > POINTS) this.values[line].shift();
    });
    const top = Math.max(...this.values.flat().map((value) => value ?? 0), 1e-9);
    this.values.forEach((points, line) => {
      const path = draw(points, top);
      this.paths[line].setAttribute("d", path);
      this.areas[line].setAttribute("d", path && !path.includes("M", 1) ? `${path}V${HEIGHT}H${first(points)}Z` : "");
    });
  }
}

function x(points, at) {
  return (((POINTS - points.length + at) / (POINTS - 1)) * WIDTH).toFixed(1);
}

function first(points) {
  return x(points, 0);
}

/** A gap where there is no value. */
function draw(points, top) {
  let [path, pen] = ["", "M"];
  points.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${x(points, at)} ${(HEIGHT - 2 - (value / top) * (HEIGHT - 5)).toFixed(1)}`;
    pen = "L";
  });
  return path;
}
