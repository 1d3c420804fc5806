"""The folder of a run: its configuration, provenance, and the code it depends on."""
