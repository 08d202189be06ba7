"""How fast a job trains, what holds it up, and what it has reached."""
