"""Benchmarks: what the package costs, beside what its peers cost."""
