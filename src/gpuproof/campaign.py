"""The one path of every command: suite → launcher → store."""
