"""What any process of the service does with itself: logs, children, clocks, temporary folders."""
