"""What a person sees of a run: lines, the status line, the closing summary, tables."""
