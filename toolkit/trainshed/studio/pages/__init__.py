"""Pages about runs: the report of one, the parts of a comparison. HTML and SVG by hand, in one file, without scripts."""
