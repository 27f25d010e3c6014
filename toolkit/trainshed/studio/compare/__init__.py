"""`trainshed compare RUN RUN ...`: runs of a job side by side, for example without and with the compiler."""
