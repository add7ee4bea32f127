// The settings' form: kept in the browser, empty fields meaning the server's defaults.

import { read, write } from "./api.js";

const STORE = "pydflash.settings";

export class Settings {
  #panel;
  #form;
  #opener;

  constructor(panel, opener) {
    this.#panel = panel;
    this.#form = panel.querySelector("form");
    this.#opener = opener;
    this.#load();
    this.#form.addEventListener("input", () => write(STORE, JSON.stringify(this.values)));
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("reset", () => setTimeout(() => write(STORE, "{}")));
    opener.addEventListener("click", () => this.toggle());
    panel.querySelector(".close").addEventListener("click", () => this.toggle(false));
  }

  /** @returns {Record<string, string>} what the fields say */
  get values() {
    return Object.fromEntries(new FormData(this.#form));
  }

  get isOpen() {
    return !this.#panel.hidden;
  }

  /** Whether every field can be sent; otherwise the first bad one is shown and told about. */
  check() {
    if (this.#form.checkValidity()) return true;
    this.toggle(true);
    this.#form.reportValidity();
    return false;
  }

  toggle(open = !this.isOpen) {
    this.#panel.hidden = !open;
    this.#opener.setAttribute("aria-expanded", String(open));
    if (open) this.#form.querySelector("textarea, input").focus();
    else this.#opener.focus();
  }

  /** Show the server's defaults where a field is empty. */
  showDefaults(defaults) {
    for (const [name, value] of Object.entries(defaults ?? {})) {
      const field = this.#form.elements.namedItem(name);
      if (field instanceof HTMLInputElement && value !== null) field.placeholder = String(value);
    }
  }

  #load() {
    try {
      for (const [name, value] of Object.entries(JSON.parse(read(STORE) ?? "{}"))) {
        const field = this.#form.elements.namedItem(name);
        if (field && typeof value === "string") field.value = value;
      }
    } catch {
      // Unreadable: the defaults hold.
    }
  }
}
