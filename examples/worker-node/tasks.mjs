// The handlers of this worker, by job type. Each gets the job's payload and its last checkpoint, `save` for the next
// checkpoint, and `signal`, which is aborted when the handler must stop. What it returns is the job's result.
import { setTimeout as sleep } from "node:timers/promises";

// An error that no retry can help: the contract decides by this name.
export class PermanentError extends Error {
  name = "PermanentError";
}

export const tasks = {
  async echo({ payload }) {
    return payload.value;
  },

  async sleep({ payload, signal }) {
    await sleep(payload.seconds * 1000, undefined, { signal });
  },

  async fail({ payload }) {
    throw payload.permanent ? new PermanentError(payload.message) : new Error(payload.message);
  },

  // Continues after the last page that an earlier attempt has finished.
  async thumbnail({ payload, checkpoint, save, signal }) {
    for (let page = checkpoint?.page ?? 0; page < payload.pages; page++) {
      await sleep(20, undefined, { signal }); // the work
      await save({ page: page + 1 });
    }
    return { pages: payload.pages };
  },
};
