"""The data behind the viewer: numbers and texts about a scene, independent of the web. Import from its modules."""
