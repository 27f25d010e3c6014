"""Jobs on Kubernetes: an Indexed Job or a JobSet with all that its pods need, printed as manifests or run and followed.

    manifests       the objects of a job, which `trainshed export kubernetes` prints: pure
    cluster_wishes  what the job says of the cluster (`kubernetes:`) beside that
    api_server      one request to the cluster, with the official client's credentials and connections
    pod_words       what pods, jobs and events say, in words: pure
    watched         objects of one kind, kept as the cluster has them by a thread
    pod_log         what a pod prints, from where it was read last, over as many connections as it takes
    followed        one loop: lines, states, Ctrl-C
    on_cluster      `trainshed run --on kubernetes`, taking a run up again, how the job ended

The job goes on in the cluster whoever follows it.
"""
