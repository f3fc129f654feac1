"""Trainings to convergence in float32 and in bfloat16: how far results and gradients differ."""
