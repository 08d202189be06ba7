"""What the scheduler decides about jobs, in guarded transactions."""
