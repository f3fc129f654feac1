"""Samples of the operators of the domain com.microsoft, in modules that correspond to those of ortrain.ops.contrib."""
