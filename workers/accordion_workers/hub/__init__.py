"""The Accordion actor, its client, and the records, logs and orders that travel through it."""
