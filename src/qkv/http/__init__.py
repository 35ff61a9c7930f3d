"""What the servers of qkv share: bounded connections and requests. Import from its modules."""
