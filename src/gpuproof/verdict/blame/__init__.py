"""Find what makes a group that works together slow or hang, by a search with group tests."""
