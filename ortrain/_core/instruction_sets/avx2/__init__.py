"""The kernel families compiled for the avx2 instruction set."""
