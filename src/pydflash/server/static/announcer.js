// Reads a stream to screen readers by whole sentences: a live region that changed with every token would
// start over each time.

const KEPT = 20;

export class Announcer {
  #region;
  #said = 0;

  /** @param {HTMLElement} region an element with aria-live */
  constructor(region) {
    this.#region = region;
  }

  /** A new answer begins. */
  start() {
    this.#said = 0;
  }

  /** The text so far: what it completes since the last call is said. */
  follow(text) {
    const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => text.lastIndexOf(mark)));
    if (end >= this.#said) this.#upTo(text, end + 1);
  }

  /** The whole text: its rest is said, then the closing words. */
  finish(text, words) {
    this.#upTo(text, text.length);
    this.say(words);
  }

  say(words) {
    if (!words.trim()) return;
    const line = document.createElement("p");
    line.textContent = words.trim();
    this.#region.append(line);
    while (this.#region.childElementCount > KEPT) this.#region.firstElementChild.remove();
  }

  #upTo(text, end) {
    this.say(text.slice(this.#said, end));
    this.#said = end;
  }
}
