"""The renderers of the specification. Each returns path -> text for the files that it is responsible for."""
