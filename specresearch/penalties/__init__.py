"""What quantisation costs in acceptance and speed, for targets and drafts in several precisions."""
