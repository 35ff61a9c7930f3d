"""Labels of words: from tagged sentences to a model that tags each word."""
