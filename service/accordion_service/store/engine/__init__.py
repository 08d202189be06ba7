"""Sessions of the database, and what each of them does by itself: events, labels, guards."""
