"""What READY needs, which of it was shown, and how the rest is to be."""
