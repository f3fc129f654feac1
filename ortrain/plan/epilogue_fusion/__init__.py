"""Epilogue fusion: operators that follow a convolution, matrix multiplication or gradient become part of its kernel."""
