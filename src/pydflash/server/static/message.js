// One message on the page, built from nodes; the only HTML put in as text is the Markdown renderer's.

import { renderMarkdown } from "./markdown.js";

/** An element with a class, attributes and children. */
export function make(tag, className = "", attributes = {}, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A view of a message: its element, and `update()` after the message changed. */
export class MessageView {
  #message;
  #reasoning;
  #content;
  #calls = make("div", "calls");
  #note = make("p", "note");
  #figures = make("p", "figures");

  /** @param {(call: object, result: string) => void} onResult gets what the user gives as a tool's result */
  constructor(message, onResult) {
    this.#message = message;
    this.onResult = onResult;
    const isUser = message.role === "user";
    this.element = make("article", `message ${isUser ? "user" : "assistant"}`);
    this.element.append(make("h2", "unseen", {}, isUser ? "You" : "Answer"));
    this.#content = make("div", "content");
    if (isUser) {
      this.#content.textContent = message.content;
      this.element.append(this.#content);
      return;
    }
    this.#reasoning = make("details", "reasoning", { hidden: "" });
    this.#reasoning.append(make("summary", "", {}, "Reasoning"), make("div", "thought"));
    this.element.append(this.#reasoning, this.#content, this.#calls, this.#note, this.#figures);
    this.update();
  }

  update(busy = false) {
    const { content, reasoning, calls, note, figures } = this.#message;
    this.element.classList.toggle("busy", busy);
    if (reasoning) {
      this.#reasoning.hidden = false;
      const thinking = busy && !content && !calls?.length;
      this.#reasoning.firstChild.textContent = thinking ? "Thinking …" : "Reasoning";
      this.#reasoning.lastChild.textContent = reasoning.trim();
    }
    patch(this.#content, renderMarkdown(content));
    if (calls?.length) this.#calls.replaceChildren(...calls.map((call) => this.#call(call, busy)));
    this.#note.textContent = note ?? "";
    this.#figures.textContent = busy ? "" : inWords(figures ?? {});
  }

  #call(call, busy) {
    const name = make("p", "call-name", {}, "Tool call: ", make("code", "", {}, call.name));
    const block = make("pre", "", { tabindex: "0", role: "region", "aria-label": "arguments" });
    block.textContent = pretty(call.arguments);
    const card = make("div", "call", {}, name, block);
    if (call.result !== undefined) {
      const result = make("pre", "", { tabindex: "0", role: "region", "aria-label": "result" });
      result.textContent = call.result;
      card.append(make("p", "call-name", {}, "Result"), result);
    } else if (!busy) {
      const text = make("textarea", "", { rows: "2", "aria-label": `Result of ${call.name}` });
      const form = make("form", "call-form", {}, text, make("button", "", {}, "Give result"));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.onResult(call, text.value);
      });
      card.append(form);
    }
    return card;
  }
}

/** Put new HTML in place, leaving alone what stayed the same: a selection in it, or the focus, survives. */
function patch(target, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const fresh = [...template.content.childNodes];
  const old = [...target.childNodes];
  let same = 0;
  while (same < fresh.length && same < old.length && fresh[same].isEqualNode(old[same])) same += 1;
  for (const node of old.slice(same)) node.remove();
  target.append(...fresh.slice(same));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still arriving, or not JSON
  }
}

function inWords({ tokens, rate, acceptance, first, prompt, cached }) {
  const parts = [];
  if (tokens !== undefined) parts.push(`${tokens} tokens`);
  if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
  if (acceptance) parts.push(`${acceptance.toFixed(2)} tokens a step`);
  if (first) parts.push(`first after ${first.toFixed(2)} s`);
  if (prompt !== undefined) parts.push(`prompt ${prompt}${cached ? `, ${cached} of it cached` : ""}`);
  return parts.join(" · ");
}
