"""Epilogue fusion: what follows a convolution, a product or a gradient becomes part of its kernel."""
