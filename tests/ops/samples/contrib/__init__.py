"""Samples of the operators of the domain com.microsoft."""
