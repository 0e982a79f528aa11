"""What a host has, and what else it did."""
