"""Standards that machines are compared with: rules, and the fleet's own earlier results."""
