"""What users see who have not installed Flower."""

import sys

import pytest

from ortrain import errors, federated
from ortrain.federated import client_app


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.clientapp", None)
    with pytest.raises(errors.MissingPackageError, match=r"expected the package flwr for federated learning: pip install 'ortrain\[flower\]'"):
        client_app(lambda: None, lambda context: None)


def test_a_missing_package_is_named_by_the_strategy(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.serverapp.strategy", None)
    monkeypatch.delitem(sys.modules, "ortrain.federated.scaffold", raising=False)
    with pytest.raises(errors.MissingPackageError, match="expected the package flwr for federated learning"):
        _ = federated.Scaffold
    with pytest.raises(AttributeError, match=r"module 'ortrain\.federated' has no attribute 'Scafold'"):
        _ = federated.Scafold
