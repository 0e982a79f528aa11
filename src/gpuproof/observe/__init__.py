"""Tools for readings: watch them live, export, convert, compare and plot them."""
