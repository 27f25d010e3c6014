"""Everything that passes between `train` and the ranks: variables and small files. The only seam between the two sides."""
