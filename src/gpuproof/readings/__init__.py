"""What was read of devices and host: recordings, the windows cut out of them, and what they come to."""
