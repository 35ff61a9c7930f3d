"""The task `regress`. Import from its modules."""
