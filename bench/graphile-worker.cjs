// graphile-worker, driven as its documentation says; the verbs are those of peer.py.
// URL MARKS setup | enqueue COUNT | fill COUNT | work SETTING | ping COUNT
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const { Pool } = require("pg");
const fs = require("fs");

const [, , connectionString, marks, verb, number] = process.argv;
const count = Number(number);
const logger = new Logger(() => () => {});
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function work(concurrentJobs) {
  const file = fs.openSync(marks, "r+");
  const fields = Buffer.alloc(16);
  let done = 0n, first = 0n, pings = [];
  const mark = () => { if (done++ === 0n) first = now(); };
  setInterval(() => {
    if (pings.length) fs.appendFileSync(marks + ".pings", pings.splice(0).join("\n") + "\n");
    fields.writeBigInt64LE(done, 0);
    fields.writeBigInt64LE(first, 8);
    fs.writeSync(file, fields, 0, 16, 0);
  }, 2);
  const worker = { connectionString, concurrentJobs, maxPoolSize: concurrentJobs + 1 };
  // Its default, or its own preset for speed, also with more jobs at a time.
  if (concurrentJobs > 10)
    Object.assign(worker, {
      localQueue: { size: concurrentJobs * 20 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    });
  const ping = async ({ sentAt }) => { pings.push(String(now() - BigInt(sentAt))); mark(); };
  await run({ preset: { worker }, logger, taskList: { noop: async () => mark(), ping } });
}

async function call() {
  const pgPool = new Pool({ connectionString });
  for (const event of ["error", "connect"]) pgPool.on(event, () => {});
  const utils = await makeWorkerUtils({ pgPool, logger });
  const began = now();
  if (verb === "setup") await utils.migrate();
  if (verb === "enqueue") for (let n = 0; n < count; n++) await utils.addJob("noop", { n });
  if (verb === "fill")
    for (let n = 0; n < count; n += 1000)
      await utils.addJobs(Array.from({ length: 1000 }, (_, i) => ({ identifier: "noop", payload: { n: n + i } })));
  if (verb === "ping")
    for (let n = 0; n < count; n++) {
      await sleep(20 + Math.random() * 30);
      await utils.addJob("ping", { sentAt: String(now()) });
    }
  console.log(Number(now() - began) / 1e9);
  await utils.release();
  await pgPool.end();
}

(verb === "work" ? work(count) : call()).catch((error) => {
  console.error(error);
  process.exit(1);
});
