"""What is known of runs, by their folders: how they stand, whether somebody still runs them, and how they ended."""
