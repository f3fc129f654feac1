"""Folders of images: classes, resizing, layout, normalization, augmentation, and files that are no images."""

import sys

import numpy as np
import pytest

from ortrain.data import as_loader, split
from ortrain.data.augmentation import Augment
from ortrain.data.images import ImageFolder
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidStateError

Image = pytest.importorskip("PIL.Image")
NAMES = ["image", "labels"]
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(path, pixels, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8), mode).save(path)


@pytest.fixture
def folder(tmp_path):
    """Three classes of plain 8 x 6 images (height x width): red, green and blue."""
    for name, color in (("green", GREEN), ("blue", BLUE), ("red", RED)):
        for number in range(3):
            save(tmp_path / name / f"{number}.png", np.broadcast_to(color, (8, 6, 3)))
    return tmp_path


@pytest.fixture
def picture(tmp_path):
    """One image of random pixels, 8 x 6; gives (folder, pixels)."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    save(tmp_path / "only" / "image.png", pixels)
    return tmp_path, pixels


def test_classes_are_the_folders_names_sorted_and_labels_their_numbers(folder):
    images = ImageFolder(folder, size=(8, 6))
    assert images.classes == ["blue", "green", "red"] and len(images) == 9
    assert images.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 and images.labels.dtype == np.int64
    for sample, label in enumerate(images.labels):
        expected = np.array((BLUE, GREEN, RED)[label], np.float32)[:, None, None] / 255
        np.testing.assert_allclose(images.read(sample), np.broadcast_to(expected, (3, 8, 6)), rtol=1e-6)


def test_a_loader_shuffles_images_and_labels_together(folder):
    loader = as_loader(ImageFolder(folder, size=(4, 4)), names=NAMES, dtypes={"image": "float32", "labels": "int64"}, batch_size=4, seed=2)
    assert (loader.samples, loader.batches_per_epoch) == (9, 3) and "9 images of 3 classes, 4 x 4 x 3" in loader.describe()
    images, labels = (np.concatenate(parts) for parts in zip(*loader.epoch(1), strict=True))
    order = np.random.default_rng([2, 1]).permutation(9)
    np.testing.assert_array_equal(labels, np.repeat(np.arange(3), 3)[order])
    np.testing.assert_array_equal(images.mean(axis=(2, 3)).argmax(axis=1), 2 - labels)


def test_the_path_of_a_folder_is_enough_where_all_images_have_one_size(folder):
    images, labels = next(as_loader(folder, names=NAMES, batch_size=9, shuffle=False).epoch(0))
    assert images.shape == (9, 3, 8, 6) and labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    save(folder / "red" / "9.png", np.zeros((8, 7, 3)))
    with pytest.raises(InvalidArgumentError, match=r"expected all images of one size, got 6 x 8 and, in '.*9.png', 7 x 8: give ImageFolder a size"):
        list(as_loader(folder, names=NAMES).epoch(0))


def test_pixels_are_scaled_and_normalized_per_channel_in_both_layouts(picture):
    path, pixels = picture
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    expected = (pixels / 255 - mean) / std
    np.testing.assert_allclose(ImageFolder(path, (8, 6), layout="NHWC", mean=mean, std=std).read(0), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ImageFolder(path, (8, 6), mean=mean, std=std).read(0), expected.transpose(2, 0, 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(ImageFolder(path, (8, 6), layout="NHWC", scale=1.0).read(0), pixels)


def test_gray_color_and_transparent_images_are_converted_to_the_wanted_channels(tmp_path):
    save(tmp_path / "a" / "0.png", np.full((2, 2), 51))
    save(tmp_path / "a" / "1.png", np.full((2, 2, 4), 51))
    for channels in (1, 3, 4):
        images = ImageFolder(tmp_path, (2, 2), channels, scale=1.0)
        assert images.read(0).shape == images.read(1).shape == (channels, 2, 2)
        assert set(images.read(0)[:3].ravel()) == set(images.read(1)[:3].ravel()) == {51.0}


def test_squash_crop_and_pad_treat_the_proportions_as_they_say(tmp_path):
    stripes = np.zeros((4, 8, 3))
    stripes[:, :2], stripes[:, 2:6], stripes[:, 6:] = RED, GREEN, BLUE
    save(tmp_path / "a" / "0.png", stripes)

    def columns(resize):
        return ImageFolder(tmp_path, (4, 4), layout="NHWC", scale=1.0, resize=resize).read(0)

    crop, pad, squash = columns("crop"), columns("pad"), columns("squash")
    np.testing.assert_array_equal(crop, np.broadcast_to(np.float32(GREEN), (4, 4, 3)))
    assert (pad[[0, 3]] == 0).all() and pad[1:3].sum(axis=2).min() > 200
    assert squash[0, 0].argmax() == 0 and squash[0, 3].argmax() == 2 and squash[0, 1].argmax() == squash[0, 2].argmax() == 1


def test_images_are_turned_upright(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.zeros((4, 2, 3), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 3                                        # upside down
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png", exif=exif)
    assert ImageFolder(tmp_path, (4, 2), scale=1.0).read(0)[0, :, 0].tolist() == [0, 0, 0, 255]


# ---- augmentation

def test_augmentation_depends_on_seed_epoch_and_sample_only(picture):
    augment = Augment(horizontal_flip=True, vertical_flip=True, random_crop=2, brightness=0.2, contrast=0.2)
    images = ImageFolder(picture[0], (8, 6), augment=augment)
    np.testing.assert_array_equal(images.read(0, 1, 2), images.read(0, 1, 2))
    assert (images.read(0, 1, 2) != images.read(0, 1, 3)).any() and (images.read(0, 1, 2) != images.read(0, 2, 2)).any()
    loaders = [as_loader(images, names=NAMES, seed=1, prefetch=prefetch) for prefetch in (0, 2)]
    for loader in loaders:
        np.testing.assert_array_equal(next(loader.epoch(3))[0][0], images.read(0, 1, 3))


def all_epochs(images, count=200):
    return np.stack([images.read(0, epoch=epoch) for epoch in range(count)])


def test_flips_mirror_half_of_the_images(picture):
    path, pixels = picture
    for augment, mirrored in ((Augment(horizontal_flip=True), pixels[:, ::-1]), (Augment(vertical_flip=True), pixels[::-1])):
        read = all_epochs(ImageFolder(path, (8, 6), layout="NHWC", scale=1.0, augment=augment))
        same, flipped = (read == pixels).all(axis=(1, 2, 3)), (read == mirrored).all(axis=(1, 2, 3))
        assert (same ^ flipped).all() and 70 < same.sum() < 130


def test_a_crop_with_padding_is_a_piece_of_the_padded_image(picture):
    path, pixels = picture
    read = all_epochs(ImageFolder(path, (8, 6), layout="NHWC", scale=1.0, augment=Augment(random_crop=1)))
    padded = np.pad(pixels, ((1, 1), (1, 1), (0, 0)))
    pieces = [padded[top : top + 8, left : left + 6] for top in range(3) for left in range(3)]
    found = [next(number for number, piece in enumerate(pieces) if (piece == image).all()) for image in read]
    assert set(found) == set(range(9))


def test_a_crop_by_scale_has_the_wanted_share_of_the_area():
    image = Image.new("RGB", (200, 100))
    random = np.random.default_rng(0)
    shares = [np.prod(Augment(random_crop=(0.25, 0.5)).area(image, random).size) / 20000 for _ in range(300)]
    assert 0.2 < min(shares) < 0.3 and 0.45 < max(shares) < 0.52


def test_brightness_and_contrast_stay_in_their_bounds(tmp_path):
    save(tmp_path / "a" / "0.png", np.full((4, 4, 3), 100))
    read = all_epochs(ImageFolder(tmp_path, (4, 4), scale=1.0, augment=Augment(brightness=0.2)))
    assert 79.9 < read.min() < 85 and 115 < read.max() < 120.1
    np.testing.assert_allclose(all_epochs(ImageFolder(tmp_path, (4, 4), scale=1.0, augment=Augment(contrast=0.5))), 100, rtol=1e-5)


@pytest.mark.parametrize("wrong", [dict(random_crop=-1), dict(random_crop=(0.0, 1.0)), dict(random_crop=(0.5, 0.2)), dict(random_crop=0.5), dict(brightness=2)])
def test_settings_of_augmentation_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=rf"expected {next(iter(wrong))}"):
        Augment(**wrong)


def test_the_part_that_is_held_out_is_not_augmented(picture):
    path, pixels = picture
    save(path / "only" / "second.png", pixels)
    images = ImageFolder(path, (8, 6), layout="NHWC", scale=1.0, augment=Augment(brightness=1.0))
    training, held_out = split(as_loader(images, names=NAMES, batch_size=1), 0.5)
    assert (next(training.epoch(0))[0] != pixels).any()
    assert all((next(held_out.epoch(epoch))[0] == pixels).all() for epoch in range(3))


# ---- what is refused

def test_a_file_that_is_no_image_is_refused_by_name(folder):
    (folder / "red" / "broken.png").write_bytes((folder / "red" / "0.png").read_bytes()[:40])
    images = ImageFolder(folder, (8, 6))
    with pytest.raises(InvalidArgumentError, match=r"expected an image, got a file that cannot be read: '.*broken.png'"):
        list(as_loader(images, names=NAMES).epoch(0))
    (folder / "red" / "notes.txt").write_text("red")
    with pytest.raises(InvalidArgumentError, match=r"expected images only in the folders of classes, got '.*notes.txt'"):
        ImageFolder(folder, (8, 6))


def test_an_image_with_more_than_8_bits_is_refused_and_not_clipped(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "a" / "0.png")
    with pytest.raises(InvalidArgumentError, match=r"expected an image with 8 bits per channel, got mode 'I;16': '.*0.png'"):
        ImageFolder(tmp_path, (2, 2), channels=1).read(0)


def test_hidden_files_are_passed_over(folder):
    (folder / ".DS_Store").write_bytes(b"")
    (folder / "red" / "Thumbs.db").write_bytes(b"")
    (folder / ".cache").mkdir()
    assert len(ImageFolder(folder, (8, 6))) == 9


def test_folders_without_classes_are_refused(folder):
    with pytest.raises(ArtifactNotFoundError, match=r"expected a folder with one subfolder of images per class, found none at '.*nothing'"):
        ImageFolder(folder / "nothing")
    with pytest.raises(InvalidArgumentError, match=r"files beside the subfolders, such as '0.png'"):
        ImageFolder(folder / "red")
    (folder / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"expected at least one image of every class, got none in '.*empty'"):
        ImageFolder(folder)
    with pytest.raises(InvalidArgumentError, match="no subfolders"):
        ImageFolder(folder / "empty")


WRONG = {"channels": 2, "layout": "CHW", "resize": "stretch", "size": (0, 3), "std": 0.0, "mean": (1.0, 2.0)}


@pytest.mark.parametrize("name", WRONG)
def test_settings_out_of_range_are_refused(name, folder):
    with pytest.raises(InvalidArgumentError, match=rf"expected .*{name}"):
        ImageFolder(folder, **{name: WRONG[name]})


def test_without_pillow_the_error_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidStateError, match=r"pip install 'ortrain\[images\]'"):
        ImageFolder(folder)
