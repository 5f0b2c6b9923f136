// The same for Node as protocol.py is for Python: see there what is said and answered.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const SAY_EVERY = 100;

/** Load a package of this peer's own environment, which lies elsewhere than this file. */
export const load = createRequire(join(process.env.BENCH_PEER, "package.json"));

// Node's hrtime is the machine's monotonic clock, as Python's time.monotonic() is.
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const say = (...words) => process.stdout.write(words.join(" ") + "\n");

let count = 0;
let each = false;

/** What every handler does: nothing, except that the driver hears of it. */
export function touch(n) {
  count += 1;
  if (each) say("at", n, seconds());
  else if (count === 1 || count % SAY_EVERY === 0) say("at", count, seconds());
}

/** The numbers from first on, in lots of one call. */
export function* batches(first, howMany, size = 1000) {
  for (let begin = 0; begin < howMany; begin += size) {
    const length = Math.min(size, howMany - begin);
    yield Array.from({ length }, (_, i) => first + begin + i);
  }
}

/** Do what the command line asks; `producing(address)` gives { many(first, count), one(n) }. */
export async function answer({ setup, work, producing }) {
  const [role, address, mode] = process.argv.slice(2);
  if (role === "setup") {
    await setup(address);
    process.exit(0);
  }
  if (role === "worker") {
    each = mode === "each";
    process.stdin.on("end", () => process.exit(0)).resume();
    process.on("SIGTERM", () => process.exit(0));
    await work(address);
    return;
  }
  const { many, one } = await producing(address);
  let made = 0;
  say("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [what, number] = line.split(" ");
    const begun = seconds();
    if (what === "many") {
      await many(made, Number(number));
      made += Number(number);
      say("many", number, seconds() - begun);
    } else {
      await one(Number(number));
      say("one", number, begun);
    }
  }
  process.exit(0);
}
