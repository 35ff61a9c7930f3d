"""The full matrix, and products that need none."""
