"""A Flower app that trains handwritten digits."""
