"""The compiled kernels, one package per instruction set; sources in ortrain/_core/kernels."""
