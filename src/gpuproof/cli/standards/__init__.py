"""References that machines are compared against: rules, and the fleet's own earlier results."""
