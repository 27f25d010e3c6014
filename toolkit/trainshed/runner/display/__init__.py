"""The display of a run: lines, the status line, the closing summary, tables."""
