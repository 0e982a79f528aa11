"""Is this machine or cluster ready? What is measured, judged, and blamed."""
