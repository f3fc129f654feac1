// The port of the conformance suite that runs in WebAssembly: answers requests, one JSON object per line, by the Python facade in Node.
//
//     node port.mjs SITE FOLDER...     SITE: made by tests.browser.build. FOLDERs: those with the files that requests name
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [site, ...folders] = process.argv.slice(2).map((name) => path.resolve(name));
const { loadPyodide } = await import(pathToFileURL(path.join(site, "pyodide/pyodide.mjs")));
const { packages } = JSON.parse(fs.readFileSync(path.join(site, "site.json")));
const python = await loadPyodide();
await python.loadPackage(packages.map((name) => name.endsWith(".whl") ? path.join(site, name) : name), { messageCallback() {} });
const isInside = (folder, other) => folder.startsWith(other + path.sep);
for (const folder of folders.filter((folder) => !folders.some((other) => isInside(folder, other)))) {
  python.FS.mkdirTree(folder);
  python.mountNodeFS(folder, folder);
}

const block = Buffer.alloc(1 << 16);
let pending = "";
function readLine() {
  while (!pending.includes("\n")) {
    const count = fs.readSync(0, block, 0, block.length);
    if (count === 0) return null;
    pending += block.toString("utf8", 0, count);
  }
  const end = pending.indexOf("\n") + 1, line = pending.slice(0, end);
  pending = pending.slice(end);
  return line;
}
python.setStdin({ stdin: readLine });
python.setStdout({ write: (bytes) => fs.writeSync(1, bytes) });
python.runPython(`
import sys
from ortrain.conformance.drivers import driver_for
from ortrain.conformance.service import Service, serve

serve(Service(driver_for("python")), sys.stdin, sys.stdout)
`);
