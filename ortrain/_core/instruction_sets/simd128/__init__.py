"""The kernel families compiled for the vectors of WebAssembly."""
