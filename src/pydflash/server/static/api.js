// Requests to our own server: relative addresses, the API key if one was given, errors in words.

const KEY = "pydflash.key";

/** A failure that can be shown as it is. `status` is 0 where no answer came at all. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => read(KEY) ?? "";
export const setApiKey = (key) => (key ? write(KEY, key) : localStorage.removeItem(KEY));

/** What is stored under a name, or null: storage may be switched off or full. */
export function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function write(name, text) {
  try {
    localStorage.setItem(name, text);
  } catch {
    // The page works without; it only forgets.
  }
}

/**
 * A response with a good status.
 * @param {string} path relative, so that a server behind a path prefix works too
 * @param {{body?: object, signal?: AbortSignal}} options with a body it is a POST
 */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body) headers["Content-Type"] = "application/json";
  const options = { method: body ? "POST" : "GET", headers, signal };
  if (body) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is `pydflash serve` still running?");
  }
  if (response.ok) return response;
  throw new ApiError(inWords(response.status, await response.text()), response.status);
}

export async function requestJson(path) {
  const response = await request(path);
  try {
    return await response.json();
  } catch {
    throw new ApiError("The server's answer cannot be read.", response.status);
  }
}

/** The server's own sentence where it gave one, else what the status means. */
function inWords(status, text) {
  let said = "";
  try {
    const answer = JSON.parse(text);
    said = messageOf(answer.error ?? answer);
  } catch {
    // Not JSON: a proxy's page, perhaps.
  }
  if (status === 401) return "This server asks for an API key.";
  if (said) return said;
  if (status === 404) return "The server does not know this address.";
  if (status === 413) return "The conversation is too large for the server.";
  if (status === 429 || status === 503) return "The server is busy. Try again in a moment.";
  return `The server answered with an error (HTTP ${status}).`;
}

/** The text of an error object of any of the vendors' shapes; empty if there is none. */
export function messageOf(error) {
  if (typeof error === "string") return error;
  for (const text of [error?.message, error?.detail]) if (typeof text === "string") return text;
  return "";
}
