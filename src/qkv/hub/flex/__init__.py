"""FlexAttention's signature: score functions are traced, and known ones take the fast algorithms."""
