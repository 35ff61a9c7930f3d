"""What the viewer is told about a scene: numbers and texts, without a word of the web; import from its modules."""
