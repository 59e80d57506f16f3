"""Benchmarks. Each prints ratios measured side by side in one run; none asserts a time."""
