"""The task `point`. Import from its modules."""
