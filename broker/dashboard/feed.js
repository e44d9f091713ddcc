// The live feed: server-sent events over fetch, so that the token is in a header. It goes on where it was after a break.

import { authorized } from "./api.js";

const KEPT = 500;
const SILENCE_MS = 25_000;
const PAUSES_MS = [500, 1_000, 2_000, 5_000, 10_000];

export class Feed {
  constructor() {
    Object.assign(this, { events: [], listeners: new Set(), state: "connecting", missed: 0, dropped: 0, node: null, lastId: null });
    this.stopped = new AbortController();
    this.run();
  }

  stop() {
    this.stopped.abort();
    this.change("stopped");
  }

  tell(event) {
    for (const listener of this.listeners) listener(event);
  }

  change(state) {
    this.state = state;
    this.tell(null);
  }

  async run() {
    let failures = 0;
    while (!this.stopped.signal.aborted) {
      try {
        await this.read(() => { failures = 0; });
      } catch {
        // Whatever it was, the feed is tried again.
      }
      if (this.stopped.signal.aborted) return;
      this.change("connecting");
      const pause = PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)];
      failures += 1;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  async read(opened) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE_MS);
    const headers = authorized(this.lastId ? { "Last-Event-ID": this.lastId } : {});
    const signal = AbortSignal.any([this.stopped.signal, silent.signal]);
    try {
      const response = await fetch("/v1/events?last=100", { headers, signal, cache: "no-store" });
      if (!response.ok) {
        if (response.status === 401) this.stop();
        if (response.status === 409) this.change("full");
        throw new Error(`status ${response.status}`);
      }
      opened();
      const decoder = new TextDecoder();
      let rest = "";
      for (const reader = response.body.getReader(); ;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), SILENCE_MS);
        const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
        rest = blocks.pop();
        blocks.forEach((block) => this.take(block));
      }
    } finally {
      clearTimeout(timer);
    }
  }

  take(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (!fields.event) return;
    const data = JSON.parse(fields.data);
    if (fields.event === "hello") {
      this.node = data;
      this.missed += data.missed ?? 0;
      this.change("live");
      return;
    }
    if (fields.event === "dropped") {
      this.dropped += 1;
      return;
    }
    this.lastId = fields.id ?? this.lastId;
    this.events.push(data);
    if (this.events.length > KEPT) this.events.shift();
    this.tell(data);
  }
}
