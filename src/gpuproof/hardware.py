"""What the hardware can do at most: exact device, precision and density, each with its source."""
