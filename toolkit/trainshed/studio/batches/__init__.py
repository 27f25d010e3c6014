"""The engine of tuning jobs and pipelines: many runs that belong together, in one folder, and survive any kill.

    folder      the folder: claimed by one process, with files that are replaced as a whole
    held_runs   runs whose runners outlive the process that started them
    loop        tasks in threads, a full disk, signals; its policies are the tuner and the conductor
    session     what it says and keeps; how another process ends it

What varies is in `studio/tune` (chooses values) and `studio/steps` (keeps an order).
"""
