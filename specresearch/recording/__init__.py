"""Recordings of runs, from which the simulator answers questions without the model."""
