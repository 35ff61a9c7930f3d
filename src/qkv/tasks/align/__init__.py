"""Word alignments of pairs of texts, read off a translator's attention."""
