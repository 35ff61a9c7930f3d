"""The task `generate`. Import from its modules."""
