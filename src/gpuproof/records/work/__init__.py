"""What a launch may do, with one file per kind; `records.case` combines them."""
