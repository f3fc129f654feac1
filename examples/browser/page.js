// The page: starts the worker, which trains, and shows what it reports.
const element = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });

function show(text) {
  element("status").textContent = text;
}

function addEpoch(record) {
  const row = element("history").insertRow();
  const figures = [record.training.loss, record.training.accuracy, record.validation.loss, record.validation.accuracy];
  for (const text of [record.epoch, ...figures.map((figure) => figure.toFixed(4)), record.seconds.toFixed(2)]) row.insertCell().textContent = text;
  show(`Training: epoch ${record.epoch} of ${element("epochs").value}`);
}

// A digit: pixels from 0 to 16, what it is, and what the network reads.
function addDigit({ pixels, label, prediction }) {
  const figure = document.createElement("figure"), canvas = document.createElement("canvas"), caption = document.createElement("figcaption");
  const size = Math.sqrt(pixels.length), context = canvas.getContext("2d"), image = new ImageData(size, size);
  canvas.width = canvas.height = size;
  pixels.forEach((pixel, i) => image.data.set([0, 0, 0, 255 * pixel / 16], 4 * i));
  context.putImageData(image, 0, 0);
  caption.textContent = prediction;
  caption.className = prediction === label ? "right" : "wrong";
  figure.append(canvas, caption);
  element("digits").append(figure);
}

function end({ model, digits }) {
  digits.forEach(addDigit);
  const link = element("download");
  URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([model]));
  link.hidden = false;
  element("train").disabled = false;
  show("Trained.");
}

const answers = {
  ready: () => { element("train").disabled = false; show("Ready."); },
  epoch: addEpoch,
  trained: end,
  failed: (message) => show(`Failed: ${message}`),
};
worker.onmessage = ({ data }) => answers[data.event](data.content);
worker.onerror = (error) => answers.failed(error.message);

element("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  element("train").disabled = true;
  element("history").replaceChildren();
  element("digits").replaceChildren();
  show("Training…");
  worker.postMessage({ epochs: element("epochs").valueAsNumber });
});
