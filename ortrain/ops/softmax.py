"""Records of the softmax family."""
