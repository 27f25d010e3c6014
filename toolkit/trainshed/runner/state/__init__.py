"""The state of runs by their folders: their status, whether their runner lives, and how they ended."""
