"""Records one forward of the model (units, operations, the values between them), and replays a part of it on one stage.

recorder          one forward; subject, naming: the model, one name for a module that is registered in several places
captured_values   what code has at hand; notes: what it notes in Python; side_outputs: the tensors that it leaves
replay, route     one stage of it; call_routing: which calls run here
"""
