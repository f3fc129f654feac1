"""The kernel families compiled for the avx512 instruction set."""
