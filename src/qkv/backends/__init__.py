"""The ways to compute attention; import them from their modules."""
