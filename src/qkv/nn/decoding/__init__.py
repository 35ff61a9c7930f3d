"""The caches of a decoder, and its fused step."""
