"""What a Hydra multirun adds to its jobs: progress, one summary table and a plot."""
