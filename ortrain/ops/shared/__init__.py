"""What several operator families share: broadcasting, strides, sliding windows, interpolation, convolution algorithms."""
