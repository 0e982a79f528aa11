"""What people do with readings: watch them live, export them, convert, compare and draw them."""
