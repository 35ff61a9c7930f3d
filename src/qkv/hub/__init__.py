"""Exporting models to other libraries."""
