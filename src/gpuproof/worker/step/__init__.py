"""What a step consists of: model, precision, optimizer, capture, and what was observed of it."""
