"""How records stand in their lines, where that is not as their fields do."""
