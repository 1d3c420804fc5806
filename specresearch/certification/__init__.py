"""Certificates of losslessness: enumerated targets, many samples, adversarial drafts and exact tests."""
