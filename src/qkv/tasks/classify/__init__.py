"""The task `classify`. Import from its modules."""
