"""Ranks forked from an interpreter that has already imported what the script imports first.

ranks: in `train`: starts that interpreter, asks it for ranks, says why ranks are started plainly instead

In that interpreter, where `hook/` brings it:

template: waits within `sitecustomize` and forks ranks, which go on from there
imports: imports what the script does, and watches what that depends on
proof: what a forked process would not have as one that was started plainly
"""
