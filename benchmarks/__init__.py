"""Step time, memory and cold start of ortrain on twelve workloads: python -m benchmarks."""
