"""Tells people how a run stands, by the ways that its job names (`notify:`); never fails or delays the job.

telling     what is told, when, and the process beside the runner that sends it (__main__)
senders     one function a kind of way: webhook, slack, teams, email, command
"""
