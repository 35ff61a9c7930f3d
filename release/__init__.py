"""What a release needs: the repository's address, links for an index page, and the checks before a tag."""
