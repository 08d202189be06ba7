"""What a job, a queue and an override are: pure, no framework."""
