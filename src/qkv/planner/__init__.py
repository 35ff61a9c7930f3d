"""Which algorithm computes a problem, and why."""
