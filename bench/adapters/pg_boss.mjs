// pg-boss: ten workers with batches of 1,000, polling twice a second, which is as often as it can.

import { answer, batches, load, touch } from "./protocol.mjs";

const PgBoss = load("pg-boss");

async function started(address) {
  const boss = new PgBoss({ connectionString: address, max: 10 });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

await answer({
  async setup(address) {
    const boss = await started(address);
    await boss.createQueue("touch");
    await boss.stop({ graceful: false });
  },

  async work(address) {
    const boss = await started(address);
    const handle = async (jobs) => {
      for (const job of jobs) touch(job.data.n);
    };
    for (let worker = 0; worker < 10; worker += 1) {
      await boss.work("touch", { batchSize: 1000, pollingIntervalSeconds: 0.5 }, handle);
    }
  },

  async producing(address) {
    const boss = await started(address);
    return {
      async many(first, count) {
        for (const lot of batches(first, count)) {
          await boss.insert(lot.map((n) => ({ name: "touch", data: { n } })));
        }
      },
      one: (n) => boss.send("touch", { n }),
    };
  },
});
