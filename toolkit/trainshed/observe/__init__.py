"""How a training uses the machine, and where the time of its steps goes: what is written, and how it is read.

system: samples of the machine, in the form of the platform's profiler. steps: what each rank's steps consist of.
"""
