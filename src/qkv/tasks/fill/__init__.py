"""The task `fill`. Import from its modules."""
