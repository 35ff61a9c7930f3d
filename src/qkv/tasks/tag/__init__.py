"""The task `tag`. Import from its modules."""
