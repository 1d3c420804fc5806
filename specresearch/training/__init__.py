"""Drafters trained with the modules that decode: students, objectives, corpora, and what decoding will accept of them."""
