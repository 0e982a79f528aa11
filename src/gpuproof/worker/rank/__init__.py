"""One rank of a case: who it is, what it records, how it fails and ends."""
