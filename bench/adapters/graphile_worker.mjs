// graphile-worker: 24 jobs at once, a local queue of 500, completions batched without delay.

import { answer, batches, load, touch } from "./protocol.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const { Pool } = load("pg");

const logger = new Logger(() => () => {});
const pooled = (address, max) => new Pool({ connectionString: address, max });

await answer({
  async setup(address) {
    await runMigrations({ pgPool: pooled(address, 2), logger });
  },

  async work(address) {
    await run({
      pgPool: pooled(address, 26), // as its documents advise: concurrentJobs + 2
      logger,
      noHandleSignals: true,
      preset: { worker: { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0 } },
      taskList: { touch: async ({ n }) => touch(n) },
    });
  },

  async producing(address) {
    const utils = await makeWorkerUtils({ pgPool: pooled(address, 2), logger });
    return {
      async many(first, count) {
        for (const lot of batches(first, count)) {
          await utils.addJobs(lot.map((n) => ({ identifier: "touch", payload: { n } })));
        }
      },
      one: (n) => utils.addJob("touch", { n }),
    };
  },
});
