"""Labels of texts: from labeled lines to a model that names the label of a line."""
