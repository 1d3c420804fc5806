"""Confidence intervals, percentiles and histograms."""
