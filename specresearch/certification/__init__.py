"""Certificates of losslessness: enumerated targets, adversarial drafts and exact tests."""
