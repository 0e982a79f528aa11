"""One rank of a case: which rank it is, what it records, how it fails and exits."""
