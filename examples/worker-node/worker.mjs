// A Tenure worker in plain Node (18 or newer), without packages:
//   TENURE_URL=http://127.0.0.1:8420 TENURE_QUEUE=pictures node worker.mjs
// docs/reference/protocol.md says what it does and why; `tenure conformance --worker "node worker.mjs"` checks it.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { tasks } from "./tasks.mjs";

const { TENURE_URL = "http://127.0.0.1:8420", TENURE_KEY, TENURE_QUEUE = "default" } = process.env;
const types = process.env.TENURE_TYPES?.split(",").filter((type) => Object.hasOwn(tasks, type)) ?? Object.keys(tasks);
const concurrency = Number(process.env.TENURE_CONCURRENCY ?? 10);
const graceMs = 1000 * Number(process.env.TENURE_GRACE_SECONDS ?? 1);
const workerId = `${hostname()}:${process.pid}`;
const headers = { "Content-Type": "application/json", ...(TENURE_KEY && { Authorization: `Bearer ${TENURE_KEY}` }) };
const stopping = new AbortController(); // aborted by SIGTERM: no further claims
const running = new Map(); // the promise of each running job → the controller that stops its handler
let lastMoment = Infinity; // when this process gives up sending: some seconds after SIGTERM

// Send a request until there is an answer to it. After no answer, a 5xx or a retryable refusal, the same request goes
// again: its keys make the repeat safe. `abort` ends an attempt, not the repeats; `isOver` ends the repeats.
async function post(path, body, { waitMs = 0, abort, isOver = () => false } = {}) {
  for (let pause = 100; !isOver() && Date.now() < lastMoment; pause = Math.min(2 * pause, 5000)) {
    const content = JSON.stringify(body()); // may throw
    const attempt = new AbortController();
    const end = () => attempt.abort();
    const timer = setTimeout(end, 30_000 + waitMs);
    abort?.addEventListener("abort", end);
    try {
      const response = await fetch(TENURE_URL + path, {
        method: "POST", headers, body: content, signal: attempt.signal,
      });
      const answer = await response.json();
      if (response.status < 500 && !answer.error?.retryable) return { ...answer, status: response.status };
    } catch (error) {
      if (abort?.aborted) abort = undefined; // the next attempt is not aborted
      else console.error(`${path}: ${error.cause?.message ?? error.message}; sent again`);
    } finally {
      clearTimeout(timer);
      abort?.removeEventListener("abort", end);
    }
    await sleep(pause * (0.5 + Math.random() / 2));
  }
  return { status: 0 };
}

// Claim at most this many jobs. On SIGTERM the waiting claim is sent once more with its key, and without a wait: it
// returns the jobs that it had won without our knowing, so that they can be handed back.
async function claim(limit) {
  const request = { worker_id: workerId, queues: [TENURE_QUEUE], types, limit, record: false, claim_key: randomUUID() };
  const body = () => ({ ...request, wait_seconds: stopping.signal.aborted ? 0 : 20 });
  const answer = await post("/api/v1/claims", body, { waitMs: 20_000, abort: stopping.signal });
  if (answer.status === 409) return []; // the jobs that this claim won were lost meanwhile
  if (answer.error) throw new Error(`${answer.error.code}: ${answer.error.message}`); // no key, or a wrong one
  return answer.claims ?? [];
}

// What `fail` reports of an error: facts; the contract decides whether the job runs again.
function failureOf(error) {
  return { error: { type: error?.name, message: String(error?.message ?? error), stack: error?.stack } };
}

// Run one job under its lease, and report one outcome: or none, when the lease is lost.
async function run({ job, claims, lease_token, lease_seconds }, stop) {
  const path = `/api/v1/jobs/${job.id}`;
  const lease = { claims, lease_token };
  const beatMs = (lease_seconds * 1000) / 3;
  let isOver = false;
  let isLost = false;
  const heed = (answer) => {
    isLost ||= answer.status >= 400; // another worker has the job, or it was cancelled at once
    if (isLost) stop.abort("lost");
    else if (answer.cancel_requested) stop.abort("cancelled");
  };
  (async () => {
    while (!isOver && !isLost) {
      await sleep(beatMs, undefined, { ref: false });
      heed(await post(`${path}/heartbeat`, () => lease, { isOver: () => isOver }));
    }
  })();
  const save = async (value) => {
    heed(await post(`${path}/checkpoint`, () => ({ ...lease, value })));
    stop.signal.throwIfAborted();
  };
  const report = (verb, facts) =>
    post(`${path}/${verb}`, () => ({ ...lease, idempotency_key: `${verb}:${claims}`, ...facts }));

  const outcome = await (async () => {
    if (stopping.signal.aborted) return ["hand-back", { reason: "the worker stops" }];
    if ((await report("start", {})).status !== 200) return undefined;
    const { payload, checkpoint } = job;
    // A handler that does not end when the process must is left behind.
    const stopped = new Promise((_, reject) =>
      stop.signal.addEventListener("abort", () => stop.signal.reason === "stopping" && reject(stop.signal.reason)),
    );
    try {
      const handled = tasks[job.type]({ payload, checkpoint, save, signal: stop.signal });
      const result = (await Promise.race([handled, stopped])) ?? null;
      JSON.stringify(result); // what is no JSON is the handler's failure
      return ["succeed", { result }];
    } catch (error) {
      if (stop.signal.reason === "cancelled") return ["cancelled", {}];
      if (stop.signal.reason === "stopping") return ["hand-back", { reason: "the worker stops" }];
      return ["fail", failureOf(error)];
    }
  })();
  if (outcome && !isLost) {
    let answer = await report(...outcome);
    if ([413, 422].includes(answer.status)) answer = await report("fail", failureOf(answer.error)); // too large, …
    if (answer.error) console.error(`job ${job.id}: ${outcome[0]} refused: ${answer.error.message}`);
  }
  isOver = true;
}

for (const name of ["SIGTERM", "SIGINT"]) {
  process.once(name, () => {
    stopping.abort();
    lastMoment = Date.now() + graceMs + 20_000;
    setTimeout(() => running.forEach((stop) => stop.abort("stopping")), graceMs);
  });
}
while (!stopping.signal.aborted) {
  if (running.size >= concurrency) {
    await Promise.race(running.keys());
    continue;
  }
  for (const claimed of await claim(concurrency - running.size)) {
    const stop = new AbortController();
    const job = run(claimed, stop).finally(() => running.delete(job));
    running.set(job, stop);
  }
}
await Promise.all(running.keys());
process.exit(0);
