"""The page of a run: well formed, self-contained, with all text escaped, and right about the run."""

import base64
import json
from html.parser import HTMLParser

import numpy as np
import onnx
import pytest

from ortrain.cli import main
from ortrain.errors import ArtifactNotFoundError, InvalidStateError
from ortrain.report import write_report
from tests.cli.conftest import arrays, folder, images, table  # noqa: F401
from tests.trainer.models import CLASSES

VOID = {"meta", "img", "br", "link", "input", "hr"}
DRAWN_EMPTY = {"path", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """Collects the elements of a page and checks that they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)

    def headings(self):
        return [text for text in ("Curves", "Confusion matrix", "Worst examples", "Model", "Epochs", "Settings") if text in self.text]


def train(folder, line, monkeypatch):  # noqa: F811
    monkeypatch.chdir(folder)
    assert main([*line.split(), "--quiet"]) == 0


def read(folder, name="run"):  # noqa: F811
    notes = write_report(folder / name, folder / "page.html")
    text = (folder / "page.html").read_text(encoding="utf-8")
    return notes, text, Page(text)


def assert_self_contained(text, page):
    assert "http://" not in text and "https://" not in text and "@import" not in text
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "object", "base"), tag
        assert not any(name.startswith("on") for name in attributes), attributes
        for name in ("src", "href", "srcset", "data", "action"):
            assert attributes.get(name, "data:").startswith("data:image/png;base64,") or name not in attributes
    assert text.count("url(") == text.count("url(#arrow)")


def test_the_page_of_a_classifier_of_images_shows_everything(folder, images, monkeypatch):  # noqa: F811
    train(folder, "train image.onnx photos --loss cross-entropy --epochs 2 --learning-rate 0.0001 --validation 0.3 --out run", monkeypatch)
    notes, text, page = read(folder)
    assert notes == [] and page.headings() == ["Curves", "Confusion matrix", "Worst examples", "Model", "Epochs", "Settings"]
    assert_self_contained(text, page)
    pictures = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
    assert pictures and all(base64.b64decode(source.partition(",")[2]).startswith(b"\x89PNG") for source in pictures)
    assert "prefers-color-scheme:dark" in text and sum(tag == "svg" for tag, _ in page.elements) == 3, "two curves and the model"
    titles = [attributes["title"] for tag, attributes in page.elements if tag == "td" and "title" in attributes]
    assert len(titles) == CLASSES**2 and sum(int(title.rsplit(" ", 1)[1]) for title in titles) == 9


def test_figures_are_those_of_the_exported_model(folder, monkeypatch, capsys):  # noqa: F811
    train(folder, "train model.onnx data.npz --loss cross-entropy --epochs 3 --validation 0.25 --out run", monkeypatch)
    _, text, _ = read(folder)
    record = json.loads((folder / "run" / "history.json").read_text())[-1]
    assert f"<b>{record['validation']['accuracy']:.1%}</b><span>validation accuracy" in text
    assert f"<b>{record['validation']['loss']:.4f}</b><span>validation loss" in text


def test_the_worst_rows_of_a_table_are_shown_with_their_columns(folder, table, monkeypatch):  # noqa: F811
    train(folder, "train model.onnx table.csv --target animal --loss cross-entropy --epochs 1 --validation 0.4 --out run", monkeypatch)
    _, text, page = read(folder)
    assert {"a", "b", "c", "d", "city", "confidence"} <= set(page.text) and {"rome", "oslo"} & set(page.text)
    rows = table.read_text().splitlines()[1:]
    number = int(next(word for word in page.text if word.startswith("row ")).removeprefix("row "))
    animal = rows[number].split(",")[-1]
    assert f"<td>row {number}</td><td>{animal}</td>" in text, "the row of the file, not of the validation part"


def test_a_regression_shows_how_far_off_it_is(folder, arrays, monkeypatch):  # noqa: F811
    x, _ = arrays
    np.savez(folder / "data.npz", x=x, labels=x[:, :CLASSES])
    train(folder, "train model.onnx data.npz --loss mse --epochs 1 --out run", monkeypatch)
    _, text, page = read(folder)
    assert "Confusion matrix" not in page.headings() and "off by " in text


def test_names_are_text_and_never_markup(folder, images, monkeypatch):  # noqa: F811
    evil = "<script>alert(1)</script>&\"'"
    model = onnx.load(folder / "image.onnx")
    model.graph.node[-1].output[0] = model.graph.output[0].name = evil
    onnx.save(model, folder / "image.onnx")
    (images / "red").rename(images / "red'><b onload=x>")
    run = folder / "<i>run"
    monkeypatch.chdir(folder)
    assert main(["train", "image.onnx", "photos", "--loss", "cross-entropy", "--epochs", "1", "--validation", "0.3", "--quiet", "--out", str(run)]) == 0
    write_report(run, folder / "page.html")
    text = (folder / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert_self_contained(text, page)
    assert {"b", "i"} & {tag for tag, attributes in page.elements if attributes} == set() and "<i>run" in page.text


def test_without_its_data_the_page_says_so_and_has_the_rest(folder, monkeypatch):  # noqa: F811
    train(folder, "train model.onnx data.npz --loss cross-entropy --epochs 2 --out run", monkeypatch)
    (folder / "data.npz").rename(folder / "moved.npz")
    notes, text, page = read(folder)
    assert "found nothing at" in notes[0] and page.headings() == ["Curves", "Model", "Epochs", "Settings"] and "could not be evaluated" in text


def test_data_that_have_changed_are_not_evaluated(folder, arrays, monkeypatch):  # noqa: F811
    train(folder, "train model.onnx data.npz --loss cross-entropy --epochs 2 --out run", monkeypatch)
    x, labels = arrays
    np.savez(folder / "data.npz", x=x[:-1], labels=labels[:-1])
    notes, _, _ = read(folder)
    assert "the data have changed" in notes[0]


def test_a_run_without_validation_data_has_a_page(folder, monkeypatch):  # noqa: F811
    train(folder, "train model.onnx data.npz --loss cross-entropy --epochs 1 --validation 0 --out run", monkeypatch)
    notes, _, page = read(folder)
    assert "trained on all samples" in notes[0] and "Curves" in page.headings()


def test_what_is_no_run_is_refused_and_nothing_is_written(folder, monkeypatch):  # noqa: F811
    with pytest.raises(ArtifactNotFoundError, match="expected a run"):
        write_report(folder, folder / "page.html")
    train(folder, "train model.onnx data.npz --loss cross-entropy --epochs 1 --out run", monkeypatch)
    (folder / "run" / "history.json").write_text("[{}]")
    with pytest.raises(InvalidStateError, match="expected the history of a run"):
        write_report(folder / "run", folder / "page.html")
    assert not (folder / "page.html").exists()
