"""Language models: from plain text to a model that continues it."""
