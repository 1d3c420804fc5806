"""Choosing a static draft tree from measured acceptance (Sequoia, arXiv 2402.12374)."""
