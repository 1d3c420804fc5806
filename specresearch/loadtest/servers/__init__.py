"""Measure OpenAI-compatible servers under load, in place of an engine of this process."""
