// Server-sent events over fetch, because EventSource can neither POST nor send an API key.

/**
 * The events of a response body, as they arrive. A chunk may end anywhere, inside a character too.
 * Comments, which keep a connection alive, and events without data are dropped, as the standard says.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
export async function* readEvents(body) {
  const reader = body.getReader();
  const parser = new EventParser();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader of events left: the server should know at once
  }
}

export class EventParser {
  #rest = "";
  #event = "";
  #data = [];

  /** @returns {{event: string, data: string}[]} the events that this piece of text completes */
  feed(text) {
    const out = [];
    this.#rest += text;
    for (;;) {
      const end = this.#rest.search(/[\r\n]/);
      if (end < 0) return out;
      const isReturn = this.#rest[end] === "\r";
      if (isReturn && end + 1 === this.#rest.length) return out; // its "\n" may be on the way
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(isReturn && this.#rest[end + 1] === "\n" ? end + 2 : end + 1);
      const event = this.#line(line);
      if (event) out.push(event);
    }
  }

  #line(line) {
    if (line === "") {
      const event = { event: this.#event || "message", data: this.#data.join("\n") };
      const complete = this.#data.length > 0;
      this.#event = "";
      this.#data = [];
      return complete ? event : null;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    if (name === "event") this.#event = value;
    return null;
  }
}
