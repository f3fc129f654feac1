"""Records of the norm family."""
