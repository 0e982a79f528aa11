"""What machines are held against: rules, and a fleet's own figures."""
