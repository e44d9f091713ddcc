// Reads /metrics, and makes rates and quantiles of two looks at it.

const HISTORY = 150;

function parse(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/([a-z_]+)="([^"]*)"/g)) labels[name] = value;
    const series = families.get(found[1]) ?? [];
    series.push({ labels, value: Number(found[3]) });
    families.set(found[1], series);
  }
  return families;
}

function fits(labels, wanted) {
  return Object.entries(wanted).every(([name, value]) => labels[name] === value);
}

export class Look {
  constructor(text, at) {
    this.families = parse(text);
    this.at = at;
  }

  series(name, wanted = {}) {
    return (this.families.get(name) ?? []).filter(({ labels }) => fits(labels, wanted));
  }

  sum(name, wanted = {}) {
    return this.series(name, wanted).reduce((sum, { value }) => sum + value, 0);
  }
}

/** What happened between two looks. */
export class Between {
  constructor(before, after) {
    Object.assign(this, { before, after, seconds: (after.at - before.at) / 1000 });
  }

  more(name, wanted = {}) {
    const [before, after] = [this.before.sum(name, wanted), this.after.sum(name, wanted)];
    // A node that started anew counts from zero.
    return after >= before ? after - before : after;
  }

  rate(name, wanted = {}) {
    return this.seconds > 0 ? this.more(name, wanted) / this.seconds : 0;
  }

  /** As histogram_quantile of Prometheus has it; null: nothing was measured. */
  quantile(name, share, wanted = {}) {
    const bounds = new Map();
    for (const [look, sign] of [[this.after, 1], [this.before, -1]]) {
      for (const { labels, value } of look.series(`${name}_bucket`, wanted)) {
        const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
        bounds.set(bound, (bounds.get(bound) ?? 0) + sign * value);
      }
    }
    const buckets = [...bounds].sort(([a], [b]) => a - b);
    const total = buckets.at(-1)?.[1] ?? 0;
    if (total <= 0) return null;
    let [floor, below] = [0, 0];
    for (const [bound, cumulative] of buckets) {
      if (cumulative >= share * total) {
        if (bound === Infinity) return floor;
        return cumulative === below ? bound : floor + ((bound - floor) * (share * total - below)) / (cumulative - below);
      }
      [floor, below] = [bound, cumulative];
    }
    return floor;
  }
}

/** The looks of the last minutes. */
export class Looks {
  constructor() {
    this.all = [];
  }

  add(text) {
    this.all.push(new Look(text, Date.now()));
    if (this.all.length > HISTORY) this.all.shift();
  }

  get newest() {
    return this.all.at(-1);
  }

  /** Between a look, the newest or the one at `at`, and the one about so long before; null: there is none before. */
  last(seconds, at = this.all.length - 1) {
    const newest = this.all[at];
    const earlier = this.all.slice(0, at);
    const before = earlier.findLast((look) => newest.at - look.at >= seconds * 1000) ?? earlier[0];
    return before ? new Between(before, newest) : null;
  }
}
