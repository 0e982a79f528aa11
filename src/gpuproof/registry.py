"""Plug-ins by entry point: listing reads metadata only, loading happens on use."""
