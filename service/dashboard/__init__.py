"""Pages for people, over the same api that everybody else uses."""
