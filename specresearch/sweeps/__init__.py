"""What a Hydra multirun adds to its jobs: progress, one table and a plot."""
