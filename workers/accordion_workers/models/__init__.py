"""Models of the tasks that come with the service."""
