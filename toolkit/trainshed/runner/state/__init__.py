"""What the folders of runs say: their status, whether their runner lives, and how they ended."""
