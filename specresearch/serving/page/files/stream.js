// Reads answers of the server as they come.

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function errorOf(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // the status says enough
  }
  return new ServerError(response.status, message);
}

export async function getJson(path, key) {
  const response = await fetch(path, { headers: headersOf(key) });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

// Yields the chunks of an answer.
export async function* complete(path, body, key, signal) {
  const options = {
    method: "POST",
    headers: { ...headersOf(key), "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  };
  const response = await fetch(path, options);
  if (!response.ok) throw await errorOf(response);
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.code, chunk.error.message);
    yield chunk;
  }
  throw new ServerError(0, "the connection ended before the answer did");
}

function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function* eventsOf(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) yield event.replace(/^data: /, "");
  }
}
