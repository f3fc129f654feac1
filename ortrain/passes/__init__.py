"""Passes over whole models: specialization to known inputs, new heads, half precision in float32, fused training models,
inference export."""
