"""Matrix products by the fastest library, packed weights, and reused memory."""
