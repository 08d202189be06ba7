"""What a job, a guest run or a plan can be, and what to do about it next."""
