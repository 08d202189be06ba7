"""Predicts a job's step time before it runs: one worker's step is measured here, without a network,
and what the exchanges add follows from the given link.
"""
