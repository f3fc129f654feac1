"""Passes over whole models: specialization to known inputs, half precision in float32, fused training models,
inference export."""
