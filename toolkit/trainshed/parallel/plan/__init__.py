"""Plans: what each part of a model costs, where to cut it, and the file that says so.

profile, costs      measures a model, or counts its operations; partition cuts it
candidates, degrees how many stages, tensor ranks and replicas (division: what is divided; rank_memory, traffic: what a
                    rank holds and sends; over_replicas: what replicas add)
simulate, v_shaped  each schedule's order of work
"""
