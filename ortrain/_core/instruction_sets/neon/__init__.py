"""The kernel families compiled for the neon instruction set."""
