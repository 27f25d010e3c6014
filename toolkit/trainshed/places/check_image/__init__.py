"""Is it a training image? Asked of an image from outside."""
