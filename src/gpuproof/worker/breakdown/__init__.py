"""Steps taken apart after the window: their phases, and communication measured in three ways."""
