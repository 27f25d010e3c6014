"""Jobs on Slurm: one `train` a node of an allocation, submitted with sbatch and followed from here.

    script      the batch script of a job: pure text
    client      what is asked of sbatch, scontrol and scancel
    follow      one loop: the nodes' lines as they come, the job's states, Ctrl-C
    submit      `trainshed run --on slurm`, and a submitted run to its end: by who submitted it, or by who comes later

The run's folder must lie on a file system that the nodes share, as home directories do. The job outlives whoever follows it.
"""
