// Runs Python beside the page, which stays responsive: loads the runtime and the files that site.json names, and trains when the page asks for it.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const FOLDER = "/model/";
const answer = (event, content) => postMessage({ event, content });
const read = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());
const plain = (value) => value.toJs({ dict_converter: Object.fromEntries });

async function start() {
  const { packages, files } = await (await fetch("site.json")).json();
  const python = await loadPyodide();
  await python.loadPackage(packages.map((name) => name.endsWith(".whl") ? new URL(name, location).href : name));
  python.FS.mkdir(FOLDER);
  for (const name of files) python.FS.writeFile(FOLDER + name, await read(`model/${name}`));
  python.FS.writeFile("train_in_browser.py", await read("train_in_browser.py"));
  return python;
}

const started = start();
started.then(() => answer("ready"), (error) => answer("failed", error.message));

onmessage = async ({ data }) => {
  try {
    const python = await started;
    const digits = python.pyimport("train_in_browser").train(FOLDER, data.epochs, (record) => answer("epoch", plain(record)));
    answer("trained", { digits: plain(digits), model: python.FS.readFile(`${FOLDER}trained.onnx`) });
  } catch (error) {
    answer("failed", error.message);
  }
};
