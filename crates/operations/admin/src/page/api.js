// Calls of the admin API, and the stream of its events.

let token = sessionStorage.getItem("token") ?? "";

/** An error response, with its status. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setToken(text) {
  token = text.trim();
  sessionStorage.setItem("token", token);
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error ?? text; } catch { /* not JSON */ }
  throw new ApiError(response.status, message || `status ${response.status}`);
}

export const get = async (path) => (await request(path)).json();

export async function send(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "content-type": "application/json" };
  }
  const text = await (await request(path, options)).text();
  return text ? JSON.parse(text) : null;
}

/** What a reply to a change warns of, after what was done. */
export const warned = (what, reply) => (reply?.warning ? `${what}. Warning: ${reply.warning}` : what);

/** Calls `each` with the name and the value of every event until the stream ends. */
export async function follow(path, each, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
      each(field("event"), JSON.parse(field("data")));
    }
  }
}
