"""What any process of the service does with itself: logs, child processes, clocks, temporary folders."""
