"""What a person sees of a run: lines, the line of status, metrics, the closing summary."""
