"""Records one forward of the model: units, operations and the values that pass between them."""
