"""The kernel families compiled for the baseline instruction set."""
