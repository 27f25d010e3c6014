"""`trainshed compare RUN_A RUN_B`: two runs of a job side by side, usually without and with the compiler."""
