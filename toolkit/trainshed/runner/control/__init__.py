"""Acts on runs: starts, watches, repeats, stops, resumes, removes them, and recovers what a killed runner left."""
