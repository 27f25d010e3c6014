"""Verifies what a pipelined step has computed against the undivided model.

reference_step    the step of the undivided model; tensor_digest: what is compared; comparing: with which tolerance
unit_outputs      of every unit; attributes: what modules of other ranks keep; traces: what a forward leaves behind
after_gradients   what the script has done to gradients of a step that is verified
verify_budget     how much of it there is memory for
"""
