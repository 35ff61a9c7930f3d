"""What a decoder keeps between steps, and its step in one call."""
