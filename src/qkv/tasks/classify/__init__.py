"""Labels of texts and of words: from labeled lines or tagged sentences to a model that labels others."""
