"""Preprocessing: what is fitted for a model, and that it is the same after a round trip through JSON."""

import json

import numpy as np
import pytest

from ortrain.data.augmentation import Augment
from ortrain.errors import InvalidArgumentError
from ortrain.ir import TensorType
from ortrain.runs import DataOptions, ModelInputs, Split
from ortrain.runs.images import ImagePreprocessing
from ortrain.runs.loaders import fit_preprocessing, restore_preprocessing
from ortrain.runs.preprocessing import augment_from
from ortrain.runs.tables import ArrayPreprocessing, TablePreprocessing


def inputs(**types):
    """Inputs by name: (dtype, shape); the last one is the target."""
    names = list(types)
    return ModelInputs(names[:-1], names[-1:], {name: TensorType(*kind) for name, kind in types.items()})


LABELS = ("int64", ("n",))


@pytest.fixture
def photos(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image.new("RGB", (8, 6), (200, 100, 0)).save(tmp_path / "photos" / name / "0.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(("shape", "layout", "channels", "size"), [
    (("n", 3, 4, 5), "NCHW", 3, (4, 5)), (("n", 7, 5, 3), "NHWC", 3, (7, 5)), (("n", 1, "h", "w"), "NCHW", 1, (6, 8)),
    (("n", "c", "h", "w"), "NCHW", 3, (6, 8)), (("n", "h", "w", 1), "NHWC", 1, (6, 8)),
])
def test_images_are_read_in_the_layout_and_size_of_the_model(shape, layout, channels, size, photos):
    found = fit_preprocessing(photos, inputs(image=("float32", shape), labels=LABELS), DataOptions(), Split())
    assert isinstance(found, ImagePreprocessing) and (found.layout, found.channels, found.size) == (layout, channels, size)


@pytest.mark.parametrize(("shape", "words"), [(("n", 3), r"expected a model with an image \[batch"), (("n", 7, 4, 5), "expected 1, 3 or 4 channels"),
                                              (("n", 3, 9, 9), "expected images of 9 x 9 pixels")])
def test_a_model_that_takes_no_such_images_is_refused(shape, words, photos):
    with pytest.raises(InvalidArgumentError, match=words):
        fit_preprocessing(photos, inputs(image=("float32", shape), labels=LABELS), DataOptions(image_size=(4, 4)), Split())


def write(path, columns):
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]))
    return path


def test_columns_named_like_all_inputs_are_taken_as_they_are(tmp_path):
    path = write(tmp_path / "t.csv", {"a": [1.0, 2.0, 4.0], "b": [5, 6, 7], "labels": [0, 1, 0]})
    named = inputs(a=("float32", ("n",)), b=("int64", ("n",)), labels=LABELS)
    assert fit_preprocessing(path, named, DataOptions(), Split()) == ArrayPreprocessing("labels")
    assert isinstance(fit_preprocessing(path, inputs(x=("float32", ("n", 2)), labels=LABELS), DataOptions(), Split()), TablePreprocessing)


def test_numbers_and_categories_go_to_two_inputs_without_one_hot_columns(tmp_path):
    path = write(tmp_path / "t.csv", {"a": [1.0, 2.0, 4.0], "town": ["x", "y", "x"], "labels": [0, 1, 0]})
    two = inputs(numbers=("float32", ("n", 1)), codes=("int64", ("n", 1)), labels=LABELS)
    found = fit_preprocessing(path, two, DataOptions(), Split())
    data, _ = found.labelled(path, ["numbers", "codes", "labels"])
    assert data.arrays(["numbers", "codes", "labels"])["codes"].tolist() == [[1], [2], [1]]


def test_classes_of_held_out_rows_are_known(tmp_path):
    path = write(tmp_path / "t.csv", {"a": list(range(40)), "kind": [f"k{number}" for number in range(40)]})
    found = fit_preprocessing(path, inputs(x=("float32", ("n", 1)), y=LABELS), DataOptions(target="kind"), Split(share=0.5))
    assert len(found.classes) == 40 and found.encoding.numbers[0].mean != np.mean(range(40))


def test_a_float_target_makes_a_regression_of_whole_numbers(tmp_path):
    path = write(tmp_path / "t.csv", {"a": [1, 2, 3], "y": [4, 5, 6]})
    assert fit_preprocessing(path, inputs(x=("float32", ("n", 1)), y=("float32", ("n", 1))), DataOptions(), Split()).classes is None


def test_every_preprocessing_survives_json(tmp_path, photos):
    table = write(tmp_path / "t.csv", {"a": [1.5, 2.0, 4.0], "town": ["x", "y", "x"], "labels": ["p", "q", "p"]})
    augment = Augment(horizontal_flip=True, random_crop=(0.5, 1.0), contrast=0.2)
    made = [ArrayPreprocessing("y"), fit_preprocessing(table, inputs(x=("float32", ("n", 3)), labels=LABELS), DataOptions(), Split()),
            fit_preprocessing(photos, inputs(image=("float32", ("n", 3, 4, 5)), labels=LABELS),
                              DataOptions(mean=(0.1, 0.2, 0.3), std=(0.5,), resize="crop", augment=augment), Split())]
    for preprocessing in made:
        found = restore_preprocessing(json.loads(json.dumps(preprocessing.to_dict())))
        assert found.to_dict() == json.loads(json.dumps(preprocessing.to_dict())) or found == preprocessing
        assert type(found) is type(preprocessing) and found.classes == preprocessing.classes


def test_augmentation_is_described_in_words():
    assert augment_from(["horizontal-flip", "random-crop=4", "brightness=0.25"]) == Augment(horizontal_flip=True, random_crop=4, brightness=0.25)
    assert augment_from(["random-crop=0.6:1"]).random_crop == (0.6, 1.0)
    for wrong in ("flip", "horizontal-flip=1", "random-crop", "random-crop=x", "brightness=2"):
        with pytest.raises(InvalidArgumentError):
            augment_from([wrong])


def test_a_split_is_a_share_or_a_path(tmp_path):
    (tmp_path / "v.csv").write_text("a\n1\n")
    assert Split.of("0.25", 3) == Split(share=0.25, seed=3) and not Split.of("0", 0).has_samples
    assert Split.of(str(tmp_path / "v.csv"), 0).path == str(tmp_path / "v.csv")
    for wrong in ("1", "-0.1", "nan", "nowhere.csv"):
        with pytest.raises((InvalidArgumentError, FileNotFoundError)):
            Split.of(wrong, 0)
