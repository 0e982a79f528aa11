"""What a launch may be asked to do, a file a kind; `records.case` holds them together."""
