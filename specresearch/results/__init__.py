"""The folder of a run: its settings, its provenance, and the software it depends on."""
