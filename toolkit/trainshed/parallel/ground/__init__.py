"""The ground of the wing: errors, the grid of ranks, trees of values, shards, memory, exchanges. Knows no other folder."""
