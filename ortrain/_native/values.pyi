"""Conversions between the C library and arrays: C functions only."""
