"""Train drafters with the modules that decode, and predict what decoding will accept of them."""
