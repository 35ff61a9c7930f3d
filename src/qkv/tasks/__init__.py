"""Tasks: data, model, objective and decoding put together; import them from their modules."""
