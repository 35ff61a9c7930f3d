"""Tasks, which combine data, model, objective and decoding. Import them from their modules."""
