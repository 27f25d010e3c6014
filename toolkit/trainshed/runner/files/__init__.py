"""One run: what lies where, code and channels on their way in, results on their way home, hosts watched.

staging      channels on their way in; mounts: FastFile through rclone
fetching/    items of a source (S3, web, hub, model store, rclone) in ranges, through the cache, to their place
provenance   what a run notes of its code, git (git_state), image, parents and model
warm_pool    what a run leaves for the next one; warm_keeper: the process that ends it
collect      results on their way home; ending: how hosts ended
"""
