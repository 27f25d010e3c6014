"""The model store (`trainshed models`): named models with versions, in a folder or on S3.

    reference     `digits@champion`, `digits:3`: which version a person means
    version       what is kept of a version, and what of it can be believed
    storage       what a store needs from the place where it lies; on_disk and in_s3 are the two places
    store         adds, finds, copies, compares and removes versions
    card          a version as a model card in Markdown
    merge         writes an adapter into the model that it belongs to; it keeps nothing

There is no index: a version is one file, which appears at once and never changes, and names the files that belong to it.
So a writer that is killed leaves no half version, and nothing that could be damaged stands between a version and its reader.
"""
