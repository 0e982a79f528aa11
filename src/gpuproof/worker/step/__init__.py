"""What a step is: model, precision, optimizer, capture, and what was seen of it."""
