"""The catalogue of runs: an index made of the runs' folders, questions to it, tags, and what differs between runs."""
