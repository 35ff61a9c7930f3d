"""The task `translate`. Import from its modules."""
