"""What jobs report, as rows and events."""
