// BullMQ on Redis: concurrency 100, bulk by addBulk; what is done is removed, as its documents advise for production.

import { answer, batches, load, touch } from "./protocol.mjs";

const { Queue, Worker } = load("bullmq");

const connection = (address) => ({ path: address, maxRetriesPerRequest: null });

await answer({
  async setup() {},

  async work(address) {
    const worker = new Worker("touch", async (job) => touch(job.data.n), {
      connection: connection(address),
      concurrency: 100,
    });
    await worker.waitUntilReady();
  },

  async producing(address) {
    const queue = new Queue("touch", {
      connection: connection(address),
      defaultJobOptions: { removeOnComplete: true },
    });
    await queue.waitUntilReady();
    return {
      async many(first, count) {
        for (const lot of batches(first, count)) {
          await queue.addBulk(lot.map((n) => ({ name: "touch", data: { n } })));
        }
      },
      one: (n) => queue.add("touch", { n }),
    };
  },
});
