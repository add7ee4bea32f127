// What was said, and how a streamed answer becomes part of it. No DOM.
//
// A message is {role, content} and, where the role is "assistant", also reasoning, calls
// [{id, name, arguments, result}], figures, note. Everything in it survives JSON.

import { ApiError, messageOf, read, request, write } from "./api.js";
import { readEvents } from "./sse.js";

const STORE = "pydflash.chat";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** The stored messages; none if nothing readable is stored. */
export function loadMessages() {
  try {
    const stored = JSON.parse(read(STORE) ?? "[]");
    return Array.isArray(stored) ? stored.filter((m) => typeof m?.content === "string") : [];
  } catch {
    return [];
  }
}

export const saveMessages = (messages) => write(STORE, JSON.stringify(messages));

export const newAnswer = () => ({
  role: "assistant",
  content: "",
  reasoning: "",
  calls: [],
  figures: null,
  note: "",
});

/**
 * The body of a chat request. A setting left empty is not sent: the server's own default holds.
 * @throws {ApiError} when the tools are no JSON array
 */
export function requestBody(messages, settings, model) {
  const body = {
    model,
    messages: settings.system ? [{ role: "system", content: settings.system }] : [],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const message of messages) body.messages.push(...asSent(message));
  for (const name of NUMBERS) {
    const value = settings[name]?.trim();
    if (value) body[name] = Number(value);
  }
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (settings.tools?.trim()) body.tools = readTools(settings.tools);
  return body;
}

function readTools(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new ApiError(`The tools in the settings are not JSON: ${error.message}`);
  }
  if (Array.isArray(tools)) return tools;
  throw new ApiError("The tools in the settings must be a JSON array.");
}

function asSent(message) {
  if (message.role !== "assistant") return [{ role: message.role, content: message.content }];
  const calls = message.calls ?? [];
  if (!message.content && !calls.length) return []; // failed before it said anything
  const sent = { role: "assistant", content: message.content };
  if (calls.length) {
    sent.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  const results = calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: call.result ?? "No result was given.",
  }));
  return [sent, ...results];
}

/**
 * Stream an answer into `answer`, calling `changed` after each piece. Returns normally also when the answer
 * was stopped or broke off: `answer.note` then says so in words.
 * @throws {ApiError} when the server refused the request
 */
export async function streamAnswer(body, answer, signal, changed) {
  const clock = { start: performance.now(), first: 0, last: 0, pieces: 0 };
  let finish = "";
  let done = false;
  let final = null;
  try {
    const response = await request("v1/chat/completions", { body, signal });
    for await (const { data } of readEvents(response.body)) {
      if (data === "[DONE]") {
        done = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(messageOf(chunk.error) || "The server gave up.", 200);
      if (chunk.usage || chunk.timings) final = { ...final, ...chunk };
      const choice = chunk.choices?.[0];
      if (choice?.finish_reason) finish = choice.finish_reason;
      if (choice?.delta && addDelta(answer, choice.delta)) {
        clock.last = performance.now();
        clock.first ||= clock.last;
        clock.pieces += 1;
        changed();
      }
    }
    if (finish === "length") answer.note = "Cut off at the token limit.";
    if (!done && !finish) answer.note = "The connection closed before the answer was complete.";
  } catch (error) {
    if (error.name === "AbortError") answer.note = "Stopped.";
    else if (error instanceof ApiError && error.status !== 200) throw error;
    else if (error instanceof ApiError) answer.note = `The server failed: ${error.message}`;
    else if (error instanceof SyntaxError) answer.note = "The server sent something unreadable.";
    else answer.note = "The connection broke before the answer was complete.";
  }
  answer.figures = figuresOf(final, clock);
  changed();
}

function addDelta(answer, delta) {
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  answer.reasoning += reasoning;
  answer.content += delta.content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = (answer.calls[piece.index ?? 0] ??= { id: "", name: "", arguments: "" });
    call.id ||= piece.id ?? "";
    call.name ||= piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  return Boolean(reasoning || delta.content || delta.tool_calls?.length);
}

/**
 * What the answer cost: the server's figures, and for a stopped answer, which has none, the page's clock.
 * @returns {{tokens?: number, rate?: number, acceptance?: number, first?: number, prompt?: number,
 *   cached?: number}} tokens, tokens per second, tokens a step, seconds to the first, prompt tokens
 */
function figuresOf(final, clock) {
  const usage = final?.usage ?? {};
  const timings = usage.timings ?? final?.timings ?? {};
  const seconds = (clock.last - clock.first) / 1000;
  const measured = clock.pieces > 1 && seconds > 0 ? (clock.pieces - 1) / seconds : undefined;
  return {
    tokens: usage.completion_tokens,
    rate: timings.decode_tokens_per_sec ?? measured,
    acceptance: usage.acceptance_length,
    first: clock.first ? (clock.first - clock.start) / 1000 : undefined,
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens,
  };
}
