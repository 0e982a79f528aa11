"""Who is to blame where something that many do together is slow or hangs: a search by tests of groups."""
