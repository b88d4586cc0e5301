// Requests to the server. A channel has one pending and queues only the newest other one.

export class Refusal extends Error {}

async function post(path, body, kind, signal) {
  let response;
  try {
    response = await fetch(path, { method: "POST", body, headers: { "content-type": kind }, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The explorer does not answer: is it still running in the terminal?");
  }
  const answer = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw new Refusal(answer.error ?? `the server said ${response.status}`);
  return answer;
}

export const ask = (path, body, signal) =>
  post(`/api/${path}`, JSON.stringify(body), "application/json", signal);

export const upload = (file) => post("/api/upload", file, "application/octet-stream");

// `key` identifies a state: when a request with another key is made, the pending one is cancelled
// and its answer dropped. Within one key, as while the pointer moves, answers are shown in order,
// and queued requests that are superseded are never sent.
export class Channel {
  constructor(path, answered, refused) {
    Object.assign(this, { path, answered, refused });
    this.waiting = null;
    this.asked = null;
    this.control = null;
  }

  ask(body, key = "") {
    this.asked = key;
    this.waiting = { body, key };
    if (this.control === null) this.#send();
    else if (this.control.key !== key) this.control.abort();
  }

  close() {
    this.asked = this.waiting = null;
    this.control?.abort();
  }

  async #send() {
    const { body, key } = this.waiting;
    this.waiting = null;
    const control = new AbortController();
    control.key = key;
    this.control = control;
    try {
      const answer = await ask(this.path, body, control.signal);
      if (this.asked === key) this.answered(answer, body);
    } catch (error) {
      if (error.name !== "AbortError" && this.asked === key) {
        if (!(error instanceof Refusal)) throw error;
        this.refused(error.message);
      }
    } finally {
      this.control = null;
      if (this.waiting !== null) this.#send();
    }
  }
}
