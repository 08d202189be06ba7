"""Compression of one worker's gradients, and the exchanges that it takes."""
