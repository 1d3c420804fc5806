"""Load testing: the same requests at the same times, with and without a method."""
