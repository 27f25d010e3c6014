"""Records one forward of the model (units, operations, the values between them), and replays a part of it on one stage."""
