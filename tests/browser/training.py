"""Trains on the site of tests.browser.build in headless Chromium, as a person would: opens the page, presses buttons and reads what it shows.

    python -m pytest tests/browser/training.py     the site is in build/browser/site"""

from __future__ import annotations

import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

import ortrain

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "browser" / "site"
EPOCHS = 3
SECONDS = 120
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync"]


class Recorder(SimpleHTTPRequestHandler):
    """Serves the site and keeps which requests there were."""

    requests: list[tuple[str, str]] = []

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.requests.append((self.command, self.path))
        return parsed

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Recorder, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to which the browser saves files."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(address: str, downloads: Path) -> Iterator[Chrome]:
    """A browser whose page has trained the model."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in SWITCHES:
        options.add_argument(switch)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    with Chrome(options, Service(shutil.which("chromedriver"))) as driver:
        driver.get(address)
        wait_for_status(driver, "Ready.")
        epochs = driver.find_element(By.ID, "epochs")
        epochs.clear()
        epochs.send_keys(str(EPOCHS))
        driver.find_element(By.ID, "train").click()
        wait_for_status(driver, "Trained.")
        yield driver


def wait_for_status(driver: Chrome, expected: str) -> None:
    """Wait until the page says that it has come so far. Raises AssertionError if it says that something failed."""
    def has_come(driver: Chrome) -> bool:
        status = driver.find_element(By.ID, "status").text
        assert not status.startswith("Failed"), status
        return status == expected

    WebDriverWait(driver, SECONDS).until(has_come, f"expected the page to say {expected!r}")


def figures(browser: Chrome) -> np.ndarray:
    """The table that the page shows, without the column of seconds."""
    rows = browser.find_elements(By.CSS_SELECTOR, "#history tr")
    return np.array([[float(cell.text) for cell in row.find_elements(By.TAG_NAME, "td")[:-1]] for row in rows])


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, list[int]]:
    """What the same training shows outside of a browser: the table, and the predictions."""
    folder = tmp_path_factory.mktemp("native") / "model"
    shutil.copytree(SITE / "model", folder)
    sys.path.insert(0, str(ROOT / "examples" / "browser"))
    from train_in_browser import train

    records: list[dict[str, Any]] = []
    digits = train(str(folder), EPOCHS, records.append)
    table = [[record["epoch"], *(record[part][name] for part in ("training", "validation") for name in ("loss", "accuracy"))] for record in records]
    return np.array(table), [digit["prediction"] for digit in digits]


def test_a_page_trains_as_python_does(browser: Chrome, native: tuple[np.ndarray, list[int]]) -> None:
    np.testing.assert_allclose(figures(browser), native[0], atol=1e-4)


def test_a_page_shows_what_the_network_reads(browser: Chrome, native: tuple[np.ndarray, list[int]]) -> None:
    assert [int(caption.text) for caption in browser.find_elements(By.TAG_NAME, "figcaption")] == native[1]


def test_the_downloaded_model_has_the_accuracy_that_the_page_shows(browser: Chrome, downloads: Path) -> None:
    browser.find_element(By.ID, "download").click()
    file = downloads / "trained.onnx"
    WebDriverWait(browser, SECONDS).until(lambda _: file.exists(), "expected a download")
    digits = np.load(SITE / "model" / "digits.npz")
    logits = ortrain.InferenceSession(str(file)).run(["logits"], {"image": digits["test_images"] / np.float32(16)})[0]
    assert np.mean(logits.argmax(1) == digits["test_labels"]) == pytest.approx(figures(browser)[-1, -1], abs=1e-4)


def test_nothing_is_sent_while_a_page_trains(browser: Chrome) -> None:
    assert {method for method, _ in Recorder.requests} == {"GET"}
    assert all((SITE / path.lstrip("/")).exists() for _, path in Recorder.requests)
