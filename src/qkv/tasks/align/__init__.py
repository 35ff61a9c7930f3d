"""The task `align`. Import from its modules."""
