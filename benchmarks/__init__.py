"""Step time, memory and cold start of ortrain and its peers on twelve workloads: `python -m benchmarks`."""
