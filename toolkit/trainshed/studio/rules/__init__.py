"""Rules that watch a training: its metrics, its tensors, its machine. docs/rules.md is the user's page.

A rule is called with every point that a job measures (`metrics.points.Point`), in the order in which the points come,
and returns a sentence when it fires. losses, tensors and machine hold ours; watching is the process that calls them,
beside the job; collecting is what a rank runs for the rules on tensors.
"""
