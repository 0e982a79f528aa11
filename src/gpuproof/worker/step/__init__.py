"""Parts of a step: model, precision, optimizer, capture, and what was observed during the step."""
