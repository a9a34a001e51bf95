// Generates with llama.cpp: `node llm.mjs MODEL CONTEXT THREADS COUNT ID...`, and prints the seconds as JSON.
import { getLlama } from "node-llama-cpp";

const [path, ...rest] = process.argv.slice(2);
const [context, threads, count, ...prompt] = rest.map(Number);
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error", progressLogs: false });
const model = await llama.loadModel({ modelPath: path });
const room = await model.createContext({ contextSize: context, threads });

const cpu = () => (process.cpuUsage().user + process.cpuUsage().system) / 1e6;
const wall = () => performance.now() / 1e3;
let start = [cpu(), wall()];
const lap = () => {
  const now = [cpu(), wall()];
  const spent = now.map((time, at) => time - start[at]);
  start = now;
  return spent;
};
let prefill;
let seen = 0;
for await (const _ of room.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
  prefill ??= lap();
  if (seen++ === count) break;
}
const decode = lap();
const memory = process.resourceUsage().maxRSS * 1024 / 1e6;
console.log(JSON.stringify({ prefill, decode, memory, tokens: seen - 1 }));
process.exit(0);
