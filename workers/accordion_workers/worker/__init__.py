"""One worker process: its process group, its link to the Accordion actor, its memory and exit."""
