"""How processes are started, watched and ended, on both halves: the standard library only."""
