"""Every operator with a compiled kernel, forward and gradient, beside PyTorch's operator and a lower bound of this machine."""
