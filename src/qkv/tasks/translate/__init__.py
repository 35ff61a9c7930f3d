"""Translation: from pairs of texts to a model that translates, alone or in an ensemble."""
