"""What users see who have not installed Flower."""

import sys

import pytest

from ortrain import errors
from ortrain.federated import client_app


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.clientapp", None)
    with pytest.raises(errors.MissingPackageError, match=r"expected the package flwr for federated learning: pip install 'ortrain\[flower\]'"):
        client_app(lambda: None, lambda context: None)
