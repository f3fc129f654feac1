"""The renderers of the spec: each gives the texts of the files it is responsible for."""
