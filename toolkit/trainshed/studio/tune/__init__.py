"""Tuning jobs (`trainshed tune`): many runs of one job with other hyperparameters, and the best of them.

    tuning_file, tuning_request   from what a person wrote to a checked `TuningJob` (tuning)
    space, propose                ranges and their scales; which values the next trial gets
    early                         which running trials are stopped: the median rule, ASHA
    trial, tuning_folder          one trial and what the folder keeps of all of them: files that survive any kill
    trial_runs                    a trial as an ordinary run: started, adopted, stopped
    tuner                         the policy of the loop (studio/batches)
    sessions                      the commands
    board, describe               how it stands: in numbers, for a person, in the platform's shape
    tuning_page                   the report

The files in the folder are the truth. Whatever else the tuner knows it works out from them anew, so that it can be killed at
any moment and started again.
"""
