// Requests to the server: JSON in and out, the token, and errors in the server's own words.

const KEY = "fastbert-token";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let token = null;
try {
  token = sessionStorage.getItem(KEY);
} catch {
  // Storage is blocked: the token lasts as long as the page.
}

export const hasToken = () => token !== null;

/** Keep a token for this tab, or forget it (null). */
export function keepToken(value) {
  token = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // As above.
  }
}

/** Return the answer to a GET, or to a POST of `body`. Throws a ServerError of one line, or AbortError. */
export async function call(path, { body, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  let text;
  try {
    // Tokens are printable ASCII; one that is not would fail here, and it is the server that is to refuse it.
    if (token !== null) headers.Authorization = `Bearer ${token.trim().replaceAll(/[^\x21-\x7e]/g, "?")}`;
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(`no answer from ${location.host}: is the server running?`, 0);
  }
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = null;
  }
  if (!response.ok) {
    const message = typeof answer?.error === "string" ? answer.error : `${response.status} ${response.statusText}`;
    if (response.status === 401) document.dispatchEvent(new CustomEvent("unauthorized", { detail: message }));
    throw new ServerError(message, response.status);
  }
  if (answer === null) throw new ServerError(`${path}: the answer is not JSON`, response.status);
  return answer;
}
