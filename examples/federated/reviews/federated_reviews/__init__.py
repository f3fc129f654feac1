"""A Flower app that trains low-rank adapters on reviews."""
