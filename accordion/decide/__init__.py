"""Which level each layer gets: detector, controller and overrides; needs no torch."""
