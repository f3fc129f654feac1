"""Builds wheels with several Pythons, and runs the tests with what they install."""
