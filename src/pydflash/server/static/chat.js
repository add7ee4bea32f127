// The chat page: the composer, the conversation and what connects them.

import { Announcer } from "./announcer.js";
import { apiKey, requestJson, setApiKey } from "./api.js";
import { loadMessages, newAnswer, requestBody, saveMessages, streamAnswer } from "./conversation.js";
import { MessageView } from "./message.js";
import { Settings } from "./settings.js";

const byId = (id) => document.getElementById(id);
const log = byId("log");
const composer = byId("composer");
const prompt = byId("prompt");
const send = byId("send");
const again = byId("again");
const trouble = byId("trouble");
const keyForm = byId("key-form");
const announcer = new Announcer(byId("live"));
const settings = new Settings(byId("settings"), byId("open-settings"));

let messages = loadMessages();
let model = "";
let running = null; // the AbortController of the answer that streams
let afterKey = null; // what to do once a key is there

// ---- the conversation

function show(message) {
  const view = new MessageView(message, giveResult);
  log.append(view.element);
  byId("empty").hidden = true;
  return view;
}

function showAll() {
  log.replaceChildren();
  byId("empty").hidden = messages.length > 0;
  messages.forEach(show);
  settle();
}

/** What depends on whether an answer streams, and on how the conversation ends. */
function settle() {
  const busy = running !== null;
  send.textContent = busy ? "Stop" : "Send";
  send.classList.toggle("stop", busy);
  log.setAttribute("aria-busy", String(busy));
  byId("new").disabled = busy;
  again.hidden = busy || messages.length === 0 || openCalls().length > 0;
}

const openCalls = () => (messages.at(-1)?.calls ?? []).filter((call) => call.result === undefined);

async function answer() {
  if (running || !settings.check()) return;
  let body;
  try {
    body = requestBody(messages, settings.values, model);
  } catch (error) {
    complain(error);
    return;
  }
  const message = newAnswer();
  const view = show(message);
  messages.push(message);
  running = new AbortController();
  complain(null);
  announcer.start();
  settle();
  const paint = paced(() => {
    view.update(true);
    announcer.follow(message.content);
    keepInSight();
  });
  follow = true;
  paint();
  try {
    await streamAnswer(body, message, running.signal, paint);
  } catch (error) {
    messages.pop();
    view.element.remove();
    complain(error, answer);
  } finally {
    paint.stop();
    running = null;
    view.update();
    announcer.finish(message.content, message.note || "End of the answer.");
    saveMessages(messages);
    settle();
    keepInSight();
  }
}

function ask() {
  const content = prompt.value.trim();
  if (!content || running || !settings.check()) return;
  messages.push({ role: "user", content });
  show(messages.at(-1));
  saveMessages(messages);
  prompt.value = "";
  fit();
  answer();
}

function giveResult(call, result) {
  call.result = result;
  saveMessages(messages);
  showAll();
  prompt.focus();
  if (openCalls().length === 0) answer();
}

function tryAgain() {
  while (messages.at(-1)?.role === "assistant") messages.pop();
  showAll();
  prompt.focus();
  answer();
}

function startOver() {
  messages = [];
  saveMessages(messages);
  complain(null);
  showAll();
  announcer.say("New chat.");
  prompt.focus();
}

// ---- painting

/** Run at most once a frame, and rarely where a run takes long: a huge answer must not freeze the page. */
function paced(run) {
  let waiting = 0;
  let next = 0;
  const frame = (now) => {
    waiting = 0;
    if (now < next) {
      waiting = requestAnimationFrame(frame);
      return;
    }
    const start = performance.now();
    run();
    next = start + 5 * (performance.now() - start);
  };
  const ask = () => {
    waiting ||= requestAnimationFrame(frame);
  };
  ask.stop = () => cancelAnimationFrame(waiting);
  return ask;
}

const scroller = byId("scroller");
let follow = true;
scroller.addEventListener("scroll", () => {
  follow = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
});

function keepInSight() {
  if (follow) scroller.scrollTop = scroller.scrollHeight;
}

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, window.innerHeight / 3)}px`;
}

// ---- trouble

function complain(error, retry = null) {
  trouble.textContent = error?.message ?? "";
  trouble.hidden = !error;
  if (error?.status !== 401) return;
  afterKey = retry;
  keyForm.hidden = false;
  byId("key").value = apiKey();
  byId("key").focus();
}

async function greet() {
  try {
    const list = await requestJson("v1/models");
    model = list.data?.[0]?.id ?? "";
    byId("model").textContent = model;
    complain(null);
    const props = await requestJson("props").catch(() => ({})); // only placeholders depend on it
    settings.showDefaults(props.default_generation_settings);
  } catch (error) {
    complain(error, greet);
  }
}

keyForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  setApiKey(byId("key").value.trim());
  keyForm.hidden = true;
  const retry = afterKey;
  afterKey = null;
  prompt.focus();
  await greet();
  if (retry && retry !== greet && trouble.hidden) retry();
});

// ---- keys and buttons

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else ask();
});

prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask(); // while an answer streams this does nothing: only Stop and Esc stop
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (running) running.abort();
  else if (settings.isOpen) settings.toggle(false);
});

again.addEventListener("click", tryAgain);
byId("new").addEventListener("click", startOver);

log.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const code = button.closest(".code").querySelector("code");
  button.textContent = (await copy(code)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
});

async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    // No clipboard without HTTPS, as on a local network: select it, and use the old command.
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

showAll();
keepInSight();
greet();
