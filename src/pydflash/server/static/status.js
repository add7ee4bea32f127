// Live figures: polls status/json, listens to status/events, draws what it is given and "–" for the rest.

import { apiKey, request, requestJson, setApiKey } from "./api.js";
import { lineChart, treeChart } from "./chart.js";
import { make } from "./message.js";
import { readEvents } from "./sse.js";

const POLL_MS = 2000;
const KEPT_SAMPLES = 300;
const KEPT_TEXT = 4000;
const KEPT_TREES = 3;
const KEPT_REQUESTS = 12;
const RATE_WINDOW_S = 5;

const byId = (id) => document.getElementById(id);
const now = () => performance.now() / 1000;
const rates = [];
const acceptances = [];
let arrived = [];
let opened = null; // when the stream of events began
let latest = "";
let currentId = "";

// ---- drawing

function draw(status) {
  const history = status.perf_history ?? [];
  byId("model").textContent = status.model?.id ?? status.model ?? status.current?.model ?? "";
  say(status);
  if (status.failure) complain(new Error(`The engine has stopped: ${status.failure}`));
  const rate = status.tokens_per_second ?? countedRate();
  const trees = (status.draft_trees ?? []).filter((tree) => tree.parents && tree.path?.length);
  const acceptance = acceptanceOf(status, trees) ?? history.at(-1)?.acceptance_length;
  sample(rates, rate);
  sample(acceptances, acceptance);
  tiles(byId("tiles"), {
    Running: status.running ?? status.live ?? (status.current ? 1 : 0),
    Waiting: status.waiting,
    "Tokens per second": rate?.toFixed(1),
    "Acceptance length": acceptance?.toFixed(2), // null where nothing was drafted
    "Requests in all": status.total_requests,
    Up: status.uptime_s === undefined ? undefined : duration(status.uptime_s),
  });
  byId("rate").replaceChildren(lineChart(rates, "Tokens per second"));
  byId("acceptance").replaceChildren(lineChart(acceptances, "Acceptance length"));
  drawTrees(trees);
  drawCurrent(status.current);
  drawHistory(history);
  const cache = Object.entries(status.cache ?? {}).filter(([, value]) => typeof value !== "object");
  byId("cache-part").hidden = cache.length === 0;
  tiles(byId("cache"), Object.fromEntries(cache.map(([name, value]) => [words(name), value])));
}

/** Tokens a step as the server has it, or while one answers, the mean over the last trees. */
function acceptanceOf(status, trees) {
  if (typeof status.acceptance_length === "number") return status.acceptance_length;
  if (status.phase !== "decode" || !trees.length) return undefined;
  return trees.reduce((sum, tree) => sum + tree.path.length, 0) / trees.length; // accepted, and one drawn
}

/** The phase goes to a live region, so it is written only when it changes. */
function say({ phase }) {
  const meaning = { idle: "Idle", prefill: "Reading a prompt", decode: "Answering" };
  const text = meaning[phase] ?? phase ?? "";
  if (byId("phase").textContent !== text) byId("phase").textContent = text;
}

function sample(samples, value) {
  if (typeof value !== "number") return;
  const at = now();
  if (samples.length && at - samples.at(-1).at < 0.5) samples.pop();
  samples.push({ at, value });
  if (samples.length > KEPT_SAMPLES) samples.shift();
}

function tiles(list, figures) {
  const tile = ([name, value]) =>
    make("div", "", {}, make("dt", "", {}, name), make("dd", "", {}, figure(value)));
  list.replaceChildren(...Object.entries(figures).map(tile));
}

function figure(value) {
  if (value === undefined || value === null) return "–";
  return typeof value === "number" ? value.toLocaleString("en") : String(value);
}

const words = (name) => (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

let treesShown = "";
function drawTrees(trees) {
  const last = trees.slice(-KEPT_TREES).reverse();
  const key = JSON.stringify(last);
  if (key === treesShown) return; // a redraw would lose where one has scrolled to
  treesShown = key;
  byId("trees-part").hidden = last.length === 0;
  const frame = { tabindex: "0", role: "region", "aria-label": "Draft tree" };
  byId("trees").replaceChildren(
    ...last.map((tree) => make("div", "tree wide", frame, treeChart(tree))),
  );
}

function drawCurrent(current) {
  byId("current-part").hidden = !current && !latest;
  const id = current ? `${current.session_id ?? ""} ${current.prompt_excerpt ?? ""}` : currentId;
  if (id !== currentId) latest = "";
  currentId = id;
  byId("latest").textContent = latest;
  if (!current) {
    byId("current").textContent = "Nothing now; this came last:";
    return;
  }
  const parts = [
    current.prompt_excerpt && `“${current.prompt_excerpt}”`,
    `prompt ${figure(current.prompt_tokens)}`,
    `answer ${figure(current.completion_tokens)} of at most ${figure(current.max_output)}`,
    current.elapsed_s !== undefined && `${current.elapsed_s.toFixed(1)} s`,
  ];
  byId("current").textContent = parts.filter(Boolean).join(" · ");
}

function drawHistory(history) {
  byId("history-part").hidden = history.length === 0;
  const row = (past) =>
    make(
      "tr",
      "",
      {},
      ...[
        figure(past.prompt_tokens),
        figure(past.completion_tokens),
        figure(past.prefill_tok_s),
        figure(past.decode_tok_s),
        figure(past.acceptance_length),
      ].map((text) => make("td", "right", {}, text)),
    );
  byId("history").replaceChildren(...history.slice(-KEPT_REQUESTS).reverse().map(row));
}

// ---- tokens

function addTokens(text, count) {
  latest = (latest + text).slice(-KEPT_TEXT);
  arrived.push({ at: now(), count });
  byId("current-part").hidden = false;
  byId("latest").textContent = latest;
  byId("latest").scrollTop = byId("latest").scrollHeight;
}

/** Tokens a second as they were told; undefined before the first. */
function countedRate() {
  if (opened === null) return undefined;
  arrived = arrived.filter(({ at }) => at > now() - RATE_WINDOW_S);
  const span = Math.min(RATE_WINDOW_S, Math.max(now() - opened, 1));
  return arrived.reduce((sum, { count }) => sum + count, 0) / span;
}

// ---- the two sources

function complain(error) {
  byId("trouble").textContent = error?.message ?? "";
  byId("trouble").hidden = !error;
  if (error?.status !== 401 || !byId("key-form").hidden) return;
  byId("key-form").hidden = false;
  byId("key").value = apiKey();
  byId("key").focus();
}

const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

async function poll() {
  for (;;) {
    if (!document.hidden) {
      try {
        const status = await requestJson("status/json");
        complain(null);
        draw(status);
      } catch (error) {
        complain(error);
      }
    }
    await pause(POLL_MS);
  }
}

async function listen() {
  for (;;) {
    try {
      const response = await request("status/events");
      opened ??= now();
      for await (const { event, data } of readEvents(response.body)) {
        if (event === "status") draw(JSON.parse(data));
        if (event === "token") {
          const { text = "", tokens = 1 } = JSON.parse(data);
          addTokens(text, tokens);
        }
      }
    } catch {
      // The polling says what is wrong; here it is only tried again.
    }
    await pause(POLL_MS);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setApiKey(byId("key").value.trim());
  byId("key-form").hidden = true;
});

poll();
listen();
