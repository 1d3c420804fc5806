"""Measure what one device makes of the engine, beside its own limits and the library's decoding."""
