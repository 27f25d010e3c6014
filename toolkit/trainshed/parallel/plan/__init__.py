"""What each part of a model costs, where to cut it, and the file that says so."""
