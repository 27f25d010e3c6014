"""Fetching of channels: many files at once, each whole or an error, kept for the next run."""
