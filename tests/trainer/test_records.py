"""Records survive JSON, and histories become columns, files and HTML."""

import csv
import json
import math
import sys
from xml.etree import ElementTree

import pytest

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidStateError
from ortrain.trainer.html import MAX_ROWS, history_html
from ortrain.trainer.records import EpochRecord, History

FIRST = EpochRecord(1, 4, {"loss": 0.5, "top-5": 0.25}, {}, 0.001, 1.5, 100)
SECOND = EpochRecord(2, 8, {"loss": 1e-6, "top-5": 0.75}, {"loss": 0.3, "<b>": 2.0}, 0.001, 1.25, 100)


@pytest.fixture
def history():
    return History([FIRST, SECOND])


def test_a_record_is_one_line_and_names_its_figures():
    assert str(SECOND) == ("epoch 2, loss 1.000e-06, top-5 0.7500, validation loss 0.3000, validation <b> 2.0000, learning rate 0.001, 1.2 s")
    assert (FIRST.loss, FIRST.validation_loss, SECOND.validation_loss) == (0.5, None, 0.3)
    assert list(SECOND.figures) == ["loss", "top-5", "validation_loss", "validation_<b>"]


def test_a_record_survives_json():
    for record in (FIRST, SECOND):
        assert EpochRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize("change", [{"epoch": "x"}, {"training": 3}, {"training": {}}, {"validation": {"loss": None}}, {"more": 1}])
def test_what_is_no_record_is_refused(change):
    with pytest.raises(InvalidArgumentError, match="expected an epoch record"):
        EpochRecord.from_dict(FIRST.to_dict() | change)
    with pytest.raises(InvalidArgumentError, match="expected an epoch record"):
        EpochRecord.from_dict({"epoch": 1})


def test_a_history_has_columns_with_gaps(history):
    assert history.to_dict() == {"epoch": [1, 2], "step": [4, 8], "loss": [0.5, 1e-6], "top-5": [0.25, 0.75], "validation_loss": [None, 0.3],
                                 "validation_<b>": [None, 2.0], "learning_rate": [0.001, 0.001], "seconds": [1.5, 1.25], "samples": [100, 100]}


def test_a_history_is_written_as_csv_whole_or_not_at_all(history, tmp_path):
    history.to_csv(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["validation_loss"] for row in rows] == ["", "0.3"] and rows[1]["validation_<b>"] == "2.0"
    assert [path.name for path in tmp_path.iterdir()] == ["run.csv"]
    with pytest.raises(ArtifactNotFoundError):
        history.to_csv(tmp_path / "none" / "run.csv")


@pytest.mark.parametrize("name, start", [("curve.png", b"\x89PNG"), ("curve.svg", b"<?xml"), ("curve", b"\x89PNG")])
def test_a_history_is_drawn(history, tmp_path, name, start):
    pytest.importorskip("matplotlib")
    history.plot(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_of_an_unknown_format_or_without_matplotlib_is_refused(history, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidArgumentError, match="expected an image file"):
        history.plot(tmp_path / "curve.docx")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidStateError, match=r"ortrain\[plot\]"):
        history.plot(tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


# ---- HTML


def parsed(html):
    """The elements of HTML, which has to be well-formed."""
    return ElementTree.fromstring(html)


def test_the_html_of_a_history_is_well_formed_escaped_and_self_contained(history):
    html = history._repr_html_()
    tree = parsed(html)
    assert "validation <b>" in {cell.text for cell in tree.iter("th")}
    rows = [[cell.text for cell in row] for row in tree.find("table").find("tbody")]
    assert rows[0][:4] == ["1", "0.5000", "0.2500", None] and rows[1][3] == "0.3000"
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) == 3, "a panel each for loss, top-5 and <b>"
    for outside in ("<script", "<link", "<img", "href", "url("):
        assert outside not in html


def test_curves_end_where_the_values_say(history):
    panel = next(parsed(history._repr_html_()).iter("{http://www.w3.org/2000/svg}svg"))
    training = panel.find("{http://www.w3.org/2000/svg}polyline")
    (first_x, first_y), (last_x, last_y) = (map(float, point.split(",")) for point in training.get("points").split())
    assert first_x < last_x and first_y < last_y, "the loss falls, and y grows downwards"


def test_values_that_are_not_finite_and_long_histories_are_drawn():
    odd = [0.5, math.nan, math.inf, 1.7e308, -1.7e308]
    records = [EpochRecord(number + 1, number + 1, {"loss": odd[number % 5]}, {}, 0.1, 0.1, 1) for number in range(3000)]
    html = history_html(records)
    tree = parsed(html)
    assert f"and {3000 - MAX_ROWS:,} more earlier epochs" in html
    points = next(tree.iter("{http://www.w3.org/2000/svg}polyline")).get("points")
    assert len(points.split()) <= 401 and "nan" not in points and "inf" not in points
    assert parsed(history_html([])).text == "no epochs yet"
    assert parsed(history_html(records[1:2])) is not None, "a loss that is NaN has no curve"
